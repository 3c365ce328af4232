"""What does a Mixture of Logits find that a dot product of the same encoder does not, on which data, at what price?

For each data set and encoder: a dot product, a dot product of as many stored numbers as the mixture, and the mixture,
each with settings that as many trials chose on the validation queries (optuna, seeded). HR@1/10/50/200, MRR and NDCG@10
of the test queries over the whole corpus, items of the history left out; training time, bytes of an item, milliseconds
of a query by the exact scan and by the cheapest method that finds .99 of its 100 best. The difference to both dot
products has a paired bootstrap over queries.

    python -m jobs.benches.quality all             every cell of CELLS: trials, training, searches; then OTHERS
    python -m jobs.benches.quality tune  --cell.data ml-1m --cell.encoder sasrec --cell.similarity mol
    python -m jobs.benches.quality train --cell.data ml-1m --cell.encoder sasrec --cell.similarity mol
    python -m jobs.benches.quality search | compare | groups | table
    python -m jobs.plots.quality

`train` takes the settings of the best trial, or what `--settings` says where there is none, and goes on where it was
cut off: its state lies under `--state`, by the config. `--device cuda` runs the same on a GPU. `search` runs with
nothing else beside it.

Held fixed: encoder, batches, epochs, negatives per query, seeds. A yes for a data set is a mixture that is ahead of
both dot products in NDCG@10 with p < .01.
"""

import hashlib
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from jobs.benches.ml1m import order_of
from jobs.benches.quality_groups import groups, properties_of
from jobs.benches.quality_measures import Quality, difference, over_seeds, quality_of, times_of
from jobs.benches.quality_models import (
    HISTORIES,
    Cell,
    Settings,
    SimilarityName,
    config_of,
    data_of,
    settings_of,
    to_row,
)
from jobs.benches.quality_rows import NAME, ends, ends_by_seed
from jobs.benches.quality_rows import trials as trials_of
from jobs.benches.record import Record, quiet, recorded
from rails_ray.cli import rendering
from rails_ray.data.dataset import DataSet
from rails_ray.families.config import RunConfig, to_json
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules import weight_files
from rails_ray.training.evaluation.mixtures import measures
from rails_ray.training.loop import train
from rails_ray.training.step import in_one_process

RANKS = "ranks.npz"  # of each test query, beside the weights of a run: for comparisons with later runs
WEIGHTS = "weights.safetensors"
SAVE_EVERY_S = 120.0
TABLE_WIDTH = 160
CELLS = [(data, encoder) for data in ("scifact", "tldr") for encoder in ("towers", "transformer", "vectors")]
CELLS += [(data, encoder) for data in HISTORIES for encoder in ("sasrec", "esasrec", "hstu")]
OTHERS = ("public_tables", "vectors_gated", "text_gates", "limit")  # benches of mixtures that `all` runs at its end
EPOCHS = {"scifact": 60.0, "tldr": 20.0, "ml-1m": 100.0}  # 30 elsewhere
BATCHES = {"scifact": 64, "tldr": 256}  # pairs of a step; 32 histories elsewhere
SIMILARITIES: tuple[SimilarityName, ...] = (
    "mol",
    "dot",
    "wide",
)  # in the order of their trials: `wide` is as wide as mol
TRIED = {**dict.fromkeys(HISTORIES, 0.1), "ml-1m": 0.05}  # of the epochs, in a trial; .2 elsewhere


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """
    data: folder of the data sets.
    state: folder of checkpoints and weights.
    epochs: passes over the training queries; 0 for those of EPOCHS.
    settings: what to train with if no trial says it.
    curve: points of the learning curve, spread over the epochs.
    seeds: how many seeds `all` trains.
    """

    task: tyro.conf.Positional[Literal["all", "tune", "train", "search", "compare", "groups", "table"]]
    cell: Cell = field(default_factory=lambda: Cell("ml-1m", "sasrec", "mol"))
    data: Path = Path("../shared/data")
    state: Path = Path("quality-state")
    epochs: float = 0.0
    trials: int = 10
    settings: Settings = field(default_factory=Settings)
    curve: int = 10
    seeds: int = 3
    device: str = "cpu"

    def epochs_of(self, cell: Cell) -> float:
        return self.epochs or EPOCHS.get(cell.data, 30.0)


def main(arguments: Arguments) -> None:
    tasks = {"tune": tune, "train": train_cell, "search": search, "compare": compare, "groups": compare_groups}
    (tasks | {"table": table, "all": run_all})[arguments.task](arguments)


def run_all(arguments: Arguments) -> None:
    for data, encoder in CELLS:
        cells = [Cell(data, encoder, similarity) for similarity in SIMILARITIES]
        for cell in cells:
            tune(replace(arguments, cell=cell))
        if cells[0].is_of_histories:
            cells.append(replace(cells[0], user=True))
        for cell in (replace(cell, seed=seed) for seed in range(arguments.seeds) for cell in cells):
            train_cell(replace(arguments, cell=cell))
    for task in (search, compare, compare_groups, table):
        task(arguments)
    for name in OTHERS:
        bench = import_module(f"jobs.benches.{name}")
        known = {field.name for field in fields(bench.Arguments)}
        given = {own: getattr(arguments, own) for own in ("data", "state", "device") if own in known}
        bench.main(bench.Arguments(**given))


def tune(arguments: Arguments) -> None:
    """Trials of one cell, each a row; those that are recorded already are not repeated."""
    import optuna

    record, cell = Record(NAME), arguments.cell
    epochs = TRIED.get(cell.data, 0.2) * arguments.epochs_of(cell)
    read = data_of(cell, arguments.data, arguments.state, is_final=False)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=cell.seed))

    def objective(trial: Any) -> float:
        settings = fitting(cell, settings_of(trial, cell))
        known = [row for row in trials_of(cell) if Settings(**row["settings"]) == settings and row["epochs"] == epochs]
        if known:
            return float(known[0]["mrr"])
        config = config_of(cell, settings, read, epochs, BATCHES.get(cell.data, 32))
        started = time.monotonic()
        model = trained(config, read, arguments.device)
        seconds = time.monotonic() - started
        found = quality_of(model, model.item_features(read.item_inputs), read.queries["valid"])
        facts = {"epochs": epochs, "number": trial.number, "seconds": seconds}
        record.row(kind="trial", **to_row(cell, settings), **facts, **found.row)
        return found.row["mrr"]

    study.optimize(objective, n_trials=arguments.trials)


def train_cell(arguments: Arguments) -> None:
    """The final training of a cell: a row for each point of its learning curve and one for its end."""
    record, cell, epochs = Record(NAME), arguments.cell, arguments.epochs_of(arguments.cell)
    trials = trials_of(cell)
    settings = Settings(**max(trials, key=lambda row: row["mrr"])["settings"]) if trials else arguments.settings
    settings = fitting(cell, settings)
    read = data_of(cell, arguments.data, arguments.state, is_final=True)
    config = config_of(cell, settings, read, epochs, BATCHES.get(cell.data, 32))
    every = max(config.training.num_steps // arguments.curve, 1)
    config = replace(config, training=replace(config.training, validate_every=every))
    run = f"{cell.name}-{hashlib.sha256(to_json(config)).hexdigest()[:8]}"
    own: Any = config.family
    parts = {name: asdict(getattr(own, name)) for name in ("encoder", "components", "similarity", "negatives")}
    facts = {**to_row(cell, settings), "epochs": epochs, "run": run, "numbers": own.numbers_of_item}
    home = arguments.state / run
    home.mkdir(parents=True, exist_ok=True)
    if (home / RANKS).exists() and any(row.get("kind") == "cell" and row.get("run") == run for row in recorded(NAME)):
        return  # it has ended

    @lru_cache(maxsize=1)  # the last point of a curve is its end
    def measured(model: DualEncoder, step: int) -> tuple[Quality, dict[str, float]]:
        features, tests = model.item_features(read.item_inputs), read.queries["test"]
        return quality_of(model, features, tests), measures(model, features, tests)

    def point(model: DualEncoder, step: int, loss: float) -> None:
        found, gates = measured(model, step)
        share = step / config.training.num_steps
        record.row(kind="curve", **facts, epoch=epochs * share, loss=loss, **found.row, **gates)

    model, seconds = _resumed(config, read, home, arguments.device, point)
    found, gates = measured(model, config.training.num_steps)
    np.savez_compressed(home / RANKS, best_rank=found.best_rank.astype(np.int32), ndcg=found.ndcg.astype("f4"))
    (home / WEIGHTS).write_bytes(weight_files.to_bytes(model))
    facts |= {"parameters": sum(one.numel() for one in model.parameters()), "order": order_of(read)}
    record.row(kind="cell", **facts, family=parts, seconds=seconds, **found.row, **gates)
    Console().print(cell.name, found.row)


def fitting(cell: Cell, settings: Settings) -> Settings:
    """`wide` stores as many numbers as the mixture of the best trial."""
    trials = trials_of(replace(cell, similarity="mol")) if cell.similarity == "wide" else []
    if not trials:
        return settings
    return replace(settings, width=max(trials, key=lambda row: row["mrr"])["settings"]["width"])


def trained(config: RunConfig, read: DataSet, device: str = "cpu") -> DualEncoder:
    """A model after all steps of a config, without a validation on the way."""
    family = DualEncoderTraining.of(config)
    model = family.model()
    family.learn_tokens(model, read)
    step = family.training_step(model.to(device), in_one_process).to(device)
    sampler = family.sampler(model, read)
    train(step, sampler.batch, config.training, seed=[config.seed, 0], report=quiet)
    return model


def _resumed(config: RunConfig, read: DataSet, home: Path, device: str, point: Any) -> tuple[DualEncoder, float]:
    """A trained model and the seconds that its training took, from the last checkpoint on if there is one."""
    family = DualEncoderTraining.of(config)
    model, place = family.model(), home / "checkpoint.safetensors"
    checkpoint = place.read_bytes() if place.exists() else None
    family.learn_tokens(model, read)
    step = family.training_step(model.to(device), in_one_process).to(device)
    sampler = family.sampler(model, read)
    saved, beside = [time.monotonic()], [0.0]
    losses: list[float] = []

    def save(data: bytes) -> None:
        (home / "checkpoint.new").write_bytes(data)
        (home / "checkpoint.new").replace(place)
        saved[0] = time.monotonic()

    with rendering.bar(Console(), config.name) as on_progress:

        def report(done: int, loss: float) -> None:
            losses.append(loss)
            on_progress(done, config.training.num_steps, f"loss {loss:.3f}")
            if done % config.training.validate_every == 0:
                started = time.monotonic()
                step.eval()
                point(model, done, float(np.mean(losses[-200:])))
                step.train()
                beside[0] += time.monotonic() - started

        progress = train(
            step,
            sampler.batch,
            config.training,
            seed=[config.seed, 0],
            report=report,
            checkpoint=checkpoint,
            save=save,
            is_due=lambda: time.monotonic() - saved[0] > SAVE_EVERY_S,
        )
    return model, progress.seconds - beside[0]


def compare(arguments: Arguments) -> None:
    """The mixture's differences in NDCG@10 and HR@10 to both dot products, over the seeds that both have."""
    record, console = Record(NAME), Console()
    for own, other, places in _compared(arguments):
        found = difference(*places)
        record.row(kind="comparison", **asdict(own), other=other, seeds=len(places[0]), **found)
        console.print(own.name, "against", other, found)


def compare_groups(arguments: Arguments) -> None:
    """The same for groups of queries, except of vectors, whose groups are those of their texts."""
    record, known = Record(NAME), dict[str, Any]()
    for own, other, places in _compared(arguments):
        if own.encoder == "vectors":
            continue
        if own.data not in known:
            known[own.data] = properties_of(data_of(own, arguments.data, arguments.state, is_final=True))
        properties = known[own.data]
        (ndcg, _), (other_ndcg, _) = map(over_seeds, places)
        for group in groups(properties, ndcg, other_ndcg):
            record.row(kind="group", **asdict(own), against=other, seeds=len(places[0]), **group)


def _compared(arguments: Arguments) -> Iterator[tuple[Cell, SimilarityName, list[list[Path]]]]:
    """Each mixture with each dot product of the same data and encoder, and the ranks of the seeds that both have."""
    ranks = {cell: arguments.state / row["run"] / RANKS for cell, row in ends().items()}
    ranks = {cell: place for cell, place in ranks.items() if place.exists()}
    mixtures = {replace(cell, seed=0) for cell in ranks if cell.similarity == "mol"}
    names: tuple[SimilarityName, ...] = ("dot", "wide")
    for own, name in itertools.product(sorted(mixtures, key=lambda cell: cell.name), names):
        other = replace(own, similarity=name, user=False, gates="all", activation="silu")
        both = [(replace(own, seed=seed), replace(other, seed=seed)) for seed in range(arguments.seeds)]
        found = [[ranks[cell] for cell in pair] for pair in both if ranks.keys() >= set(pair)]
        if found:
            yield own, name, [list(places) for places in zip(*found, strict=True)]


def search(arguments: Arguments) -> None:
    """Milliseconds of a query, in batches of 32 and on one thread or a GPU, of the first seed's models."""
    torch.set_num_threads(1)
    record, console = Record(NAME), Console()
    for cell, row in ends().items():
        if cell.seed or not (kept := kept_model(row, arguments.state, arguments.data)):
            continue
        model, read = kept
        found = times_of(model.to(arguments.device), read)
        record.row(kind="search", **asdict(cell), run=row["run"], device=arguments.device, **found)
        console.print(cell.name, found)


def kept_model(row: dict[str, Any], state: Path, folder: Path) -> tuple[DualEncoder, DataSet] | None:
    """The model of a training's row, where its weights are kept, and its data."""
    weights = state / row["run"] / WEIGHTS
    if not weights.exists():
        return None
    cell = Cell.of_row(row)
    read = data_of(cell, folder, state, is_final=True)
    config = config_of(cell, Settings(**row["settings"]), read, row["epochs"], BATCHES.get(cell.data, 32))
    return DualEncoderTraining.of(config).trained_model([("", weights.read_bytes())]), read


def table(arguments: Arguments) -> None:
    """The last training of each cell, means over seeds; beside it what its searches cost."""
    columns = ("hr@1", "hr@10", "hr@50", "hr@200", "mrr", "ndcg@10")
    searches = {row["run"]: row for row in recorded(NAME) if row.get("kind") == "search"}
    shown = Table(
        "data", "encoder", "similarity", "seeds", *columns, "training, s", "bytes", "exact, ms", "cheapest, ms"
    )
    for cell, rows in ends_by_seed():
        quality = [f"{np.mean([row[name] for row in rows]):.4f}" for name in columns]
        costs = [searches[row["run"]] for row in rows if row["run"] in searches]
        exact = [f"{cost['exact_ms']:.2f}" for cost in costs[:1]] or ["-"]
        cheapest = [f"{cost['cheapest']['ms']:.2f} {cost['cheapest']['method']}" for cost in costs[:1]] or ["-"]
        training = f"{np.mean([row['seconds'] for row in rows]):.0f}"
        facts = [training, str(4 * rows[0]["numbers"]), *exact, *cheapest]
        shown.add_row(cell.data, cell.encoder, cell.label, str(len(rows)), *quality, *facts)
    Console(width=TABLE_WIDTH).print(shown)


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    main(tyro.cli(Arguments, description=__doc__, args=sys.argv[1:]))
