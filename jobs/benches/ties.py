"""How far does HR@10 move if interactions of one time stand in another order?

The order of the table breaks ties, and so decides which item is a user's last, the test item, for some of the users.
Each of `--num-orders` random orders of all ties is another data set:

    table       the order of the table, one seed
    asked       the model of `table`, asked the test queries of a random order
    trained     trained and tested on a random order, the seed of `table`
    seeded      the order of the table, another seed: what a figure moves anyway

Held fixed: recipe, steps, corpus and users; no validation chooses among steps.

    python -m jobs.benches.ties --data.folder FOLDER [--recipe ml1m-sasrec] [--epochs 20] [--num-orders 10]

Ties matter where `trained` is spread wider than `seeded`. Data whose interactions have positions that differ have no
ties, such as a MovieLens-1M that was sorted before: take a folder with its `ratings.dat`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
import tyro
from rich.console import Console

from jobs.benches.ml1m import measures, order_of
from jobs.benches.quality import trained
from jobs.benches.record import Record
from rails_ray.data.forms.history import SequenceData, leave_each_out
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.recipes import by_name
from rails_ray.storage.filesystem import Storage

NAME = "ties"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """
    epochs: passes over the training histories.
    num_orders: random orders, and other seeds.
    """

    data: DataConfig
    recipe: str = "ml1m-sasrec"
    epochs: float = 20.0
    num_orders: int = 10


def main(arguments: Arguments) -> None:
    record = Record(NAME)
    config = replace(by_name(arguments.recipe), data=arguments.data)
    read = read_data(config, Storage("."))
    assert isinstance(read, SequenceData)
    check_ties(read)
    config = for_data(config, read)
    num_steps = max(int(arguments.epochs * len(read.queries["train"]) / config.training.batch_size), 1)
    config = replace(config, training=replace(config.training, num_steps=num_steps))
    found = dict[str, list[float]]()
    for kind, number, own, model in models(config, read, arguments.num_orders):
        row = measures(model, own, own.queries["test"])
        facts = {"data": str(Storage(arguments.data.folder or ".")).rpartition("/")[2], "recipe": config.name}
        record.row(kind=kind, number=number, **facts, epochs=arguments.epochs, order=order_of(read), **row)
        found.setdefault(kind, []).append(row["hr@10"])
    for kind, rates in found.items():
        Console().print(kind, summary(rates))


def check_ties(read: SequenceData) -> None:
    """Raises:
    ValueError: if no test item depends on the order of ties.
    """
    if not read.num_tied_tests:
        raise ValueError(
            f"interactions must have ties at the end of a history, got {read.sorted_by}s that all differ there: take "
            "data with timestamps and without positions"
        )


def models(
    config: RunConfig, read: SequenceData, num_orders: int
) -> Iterator[tuple[str, int, SequenceData, DualEncoder]]:
    """Each kind of row, its number, and the data and the model that it is measured by."""
    of_table = trained(config, read)
    yield "table", 0, read, of_table
    orders = [reordered(read, seed) for seed in range(num_orders)]
    for number, own in enumerate(orders):
        yield "asked", number, own, of_table
    for number, own in enumerate(orders):
        yield "trained", number, own, trained(config, own)
        yield "seeded", number, read, trained(replace(config, seed=config.seed + 1 + number), read)


def reordered(read: SequenceData, seed: int) -> SequenceData:
    """The data with ties in a random order."""
    own = read.histories
    assert read.sort_keys is not None
    users = np.repeat(np.arange(len(own)), own.lengths)
    order = np.lexsort((np.random.default_rng(seed).random(len(users)), read.sort_keys, users))
    times, weights = (None if values is None else values[order] for values in (own.times, own.weights))
    histories = replace(own, rows=own.rows[order], times=times, weights=weights)
    return replace(read, histories=histories, queries=leave_each_out(histories, "interactions"))


def summary(rates: list[float]) -> str:
    """Mean, standard deviation and range of figures."""
    spread = f"{np.std(rates, ddof=1):.4f}" if len(rates) > 1 else "unknown"
    return f"{np.mean(rates):.4f}, standard deviation {spread}, {min(rates):.4f} to {max(rates):.4f}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tyro.cli(Arguments, description=__doc__))
