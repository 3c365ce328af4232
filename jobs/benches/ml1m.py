"""MovieLens-1M: how well do SASRec and SASRec with a Mixture of Logits find the item that a user watches next?

Held fixed between the two: backbone, steps, batches, shared negatives, seed, optimiser, leave-one-out over the full
corpus with seen items excluded, early stopping on the validation item. Training sees neither validation nor test item.

    python -m jobs.benches.ml1m --data.folder FOLDER [--steps N] [--max-length T] [--device cuda]

The mixture is ahead if its test HR@10 is above the dot product's by more than the standard error of a difference (about
.008 at 6,040 users). The paper's figures (RAILS, Table 3; T = 200, all but the last item trained on): HR@10 .2818 and
.3036. It runs without Ray. One row per validation and one per test.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
import tyro
from rich.console import Console

from jobs.benches.record import Record
from rails_ray.cli import rendering
from rails_ray.cli.inspecting import facts
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.data.forms.history import SequenceData
from rails_ray.data.queries import Queries
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import by_name
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.ranking import rank_all
from rails_ray.training.evaluation.report import HIT_RATES
from rails_ray.training.loop import train
from rails_ray.training.step import in_one_process


@dataclass(frozen=True)
class Arguments:
    """
    recipes: to train, in this order.
    steps: of each; by default the recipe's.
    max_length: T; by default the recipe's.
    users: rows of a mixture's table of users; by default the recipe's.
    validate_every: steps between two points of the curve.
    seed: of weights, batches and dropout.
    """

    data: DataConfig
    recipes: tuple[str, ...] = ("ml1m-sasrec", "ml1m-sasrec-mol")
    steps: int | None = None
    max_length: int | None = None
    users: int | None = None
    validate_every: int | None = None
    seed: int = 0
    device: str = "cpu"


def main(arguments: Arguments) -> None:
    record, console = Record("ml1m"), Console()
    for name in arguments.recipes:
        config = replace(by_name(name), data=arguments.data, seed=arguments.seed)
        data = read_data(config, Storage("."))
        config = for_data(sized(config, arguments), data)
        with rendering.bar(console, name) as on_progress:
            one(config, data, arguments.device, record, on_progress)


def sized(config: RunConfig, arguments: Arguments) -> RunConfig:
    training = config.training
    own = DualEncoderTraining.of(config).own
    encoder: Any = own.encoder
    if arguments.max_length is not None:
        encoder = replace(encoder, max_length=arguments.max_length)
    if arguments.users is not None and own.similarity.kind == "mixture_of_logits":
        encoder = replace(encoder, num_users=arguments.users)
    config = config.with_family(encoder=encoder)
    if arguments.steps is not None:
        training = replace(training, num_steps=arguments.steps)
    if arguments.validate_every is not None:
        training = replace(training, validate_every=arguments.validate_every)
    return replace(config, training=training)


def one(config: RunConfig, data: DataSet, device: str, record: Record, on_progress: rendering.Bar) -> None:
    """Train by one recipe, with a row for each validation and for the test."""
    model = DualEncoderTraining.of(config).model().to(device)
    step = DualEncoderTraining.of(config).training_step(model, in_one_process).to(device)
    losses: list[float] = []
    started = time.monotonic()

    def validate() -> float:
        values = measures(model, data, data.queries["valid"])
        now = {"step": len(losses) + 1, "seconds": time.monotonic() - started, "loss": losses[-1] if losses else None}
        record.row(kind="validation", recipe=config.name, **now, **values)
        return values["mrr"]

    def report(done: int, loss: float) -> None:
        losses.append(loss)
        on_progress(done, config.training.num_steps, f"loss {loss:.3f}")

    sampler = DualEncoderTraining.of(config).sampler(model, data)
    progress = train(step, sampler.batch, config.training, seed=[config.seed, 0], report=report, validate=validate)
    encoder: Any = DualEncoderTraining.of(config).own.encoder
    record.row(
        kind="test",
        recipe=config.name,
        users=encoder.num_users,
        seed=config.seed,
        steps=len(progress.losses),
        epochs=len(progress.losses) * config.training.batch_size / len(data.queries["train"]),
        training_seconds=progress.seconds,
        order=order_of(data),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        **measures(model, data, data.queries["test"]),
    )


def order_of(data: DataSet) -> dict[str, Any] | None:
    """Return by which column interactions are ordered, and how many tie, so that the order of rows decides; None if the
    data are no histories."""
    return facts.of_order(data) if isinstance(data, SequenceData) else None


def measures(model: DualEncoder, data: DataSet, queries: Queries) -> dict[str, float]:
    items = encode_items(model, model.item_features(data.item_inputs))
    rank = rank_all(model, items, queries, 1).best_rank
    return {f"hr@{k}": float((rank <= k).mean()) for k in HIT_RATES} | {"mrr": float((1 / rank).mean())}


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    main(tyro.cli(Arguments, description=__doc__))
