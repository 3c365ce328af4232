"""What does a training step of a mixture cost beside one of a dot product of the same encoder?

Seconds of a step (batch, forward, back, AdamW) of SASRec on MovieLens-1M: 32 histories of up to 200 items, 128
negatives, shared by the batch, by each history, or by nobody. The mixture has 8 x 4 components of 64 and the gate's w
16 or 128 hidden units, in float32 and bfloat16, without dropout and with the paper's; and once more by the plain
version: all pairs at once, its gradient by autograd.

    python -m jobs.benches.mixture_step [--data FOLDER] [--device cuda]        with nothing else running

`least` is what the step's arithmetic alone would take: the dot product's step, and the products that the mixture adds
(components, gates, cosines and w, forward and back) at the rate of a large product in the same run. Exponentials, sums
and memory are not in it.

Held fixed: encoder, batch, negatives, seed. Each number is the median of REPEATS steps after two that are not timed. A
yes is at most 4.5 times the dot product's step with shared negatives, and 9 times with negatives of each position.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import tyro
from rich.console import Console

from jobs.benches.quality_models import Cell, Settings, config_of, data_of
from jobs.benches.record import Record
from rails_ray.data.batch import SharedBy
from rails_ray.data.dataset import DataSet
from rails_ray.families.dual_encoder.config import UniformNegatives
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.training import contrast, memory
from rails_ray.training.step import in_one_process

REPEATS, NUM_NEGATIVES = 7, 128
P_Q, P_X, WIDTH, ENCODED = 8, 4, 64, 50  # the mixture's sizes, and the width of what SASRec makes
PAPER = {"gate_dropout": 0.2, "logit_dropout": 0.1}
NONE = {"gate_dropout": 0.0, "logit_dropout": 0.0}


@dataclass(frozen=True)
class Arguments:
    """
    data: folder of the data sets.
    """

    data: Path = Path("../shared/data")
    device: str = "cpu"


def main(arguments: Arguments) -> None:
    record, console = Record("mixture_step"), Console()
    memory.keep_freed()
    cell = Cell("ml-1m", "sasrec", "mol")
    read = data_of(cell, arguments.data, Path(), is_final=False)
    rates = {dtype: rate(dtype, arguments.device) for dtype in ("float32", "bfloat16")}
    record.row(rates=rates)
    sharings: tuple[SharedBy, ...] = ("batch", "history", "query")
    for shared_by in sharings:
        dot, _ = seconds(replace(cell, similarity="dot"), read, shared_by, None, arguments.device)
        record.row(similarity="dot", shared_by=shared_by, seconds=dot)
        for hidden in (16, 128):
            for dtype in ("float32", "bfloat16"):
                for dropout in (NONE, PAPER):
                    how = {"gate_hidden": hidden, "gate_precision": dtype, **dropout}
                    taken, num_queries = seconds(cell, read, shared_by, how, arguments.device)
                    least = dot + added(num_queries, num_queries * NUM_NEGATIVES, hidden, dtype, rates)
                    facts = {"seconds": taken, "ratio": taken / dot, "least": least / dot}
                    record.row(similarity="mol", shared_by=shared_by, **facts, **how)
                    console.print(shared_by, how, f"{taken:.3f} s, {taken / dot:.1f} times a dot product's {dot:.3f} s")
                    console.print(f"    its arithmetic alone {least / dot:.1f} times")
        if shared_by == "batch":
            how = {"gate_hidden": 128, **PAPER}
            with plain():
                taken, _ = seconds(cell, read, shared_by, how, arguments.device)
            record.row(similarity="mol", shared_by=shared_by, seconds=taken, ratio=taken / dot, is_plain=True, **how)
            console.print("plain", f"{taken:.3f} s, {taken / dot:.1f} times")


def seconds(
    cell: Cell, read: DataSet, shared_by: SharedBy, how: dict[str, Any] | None, device: str
) -> tuple[float, int]:
    """Seconds of a step, and its queries.

    Args:
        how: fields of the mixture; None for a dot product.
    """
    config = config_of(cell, Settings(), read, 1.0, 32)
    config = config.with_family(negatives=UniformNegatives(num_items=NUM_NEGATIVES, shared_by=shared_by))
    if how is not None:
        config = config.with_family(
            similarity=MixtureOfLogitsConfig(num_query_components=P_Q, num_item_components=P_X, **how)
        )
    family = DualEncoderTraining.of(config)
    step = family.training_step(family.model(), in_one_process).to(device).train()
    sampler, optimizer = family.sampler(step.model, read), torch.optim.AdamW(step.parameters(), fused=True)
    taken = []
    for number in range(REPEATS + 2):
        started = time.perf_counter()
        step(sampler.batch(number).to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[2:]), len(sampler.batch(REPEATS).positive)


def added(num_queries: int, num_pairs: int, hidden: int, dtype: str, rates: dict[str, float]) -> float:
    """Seconds of the products that a mixture adds to a step. The way back has two for each of the way there."""
    own = ComponentsConfig(width=WIDTH)
    width = 2 * ENCODED * own.query_hidden + own.query_hidden * P_Q * WIDTH  # of the components
    width += own.gate_hidden * (ENCODED + P_Q * P_X)
    sides = 3 * 2 * num_queries * (width + ENCODED * P_X * WIDTH + own.gate_hidden * (ENCODED + P_Q * P_X))
    cosines, w = 2 * num_pairs * P_Q * P_X * WIDTH, 2 * num_pairs * 2 * P_Q * P_X * hidden
    return (sides + cosines) / rates["float32"] + (2 * cosines + 3 * w) / rates[dtype]


def rate(dtype: str, device: str) -> float:
    """Operations a second of a large product."""
    left, right = (torch.ones(*shape, dtype=getattr(torch, dtype), device=device) for shape in ((2048, 1024),) * 2)
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        left @ right.T
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return 2 * 2048**2 * 1024 / statistics.median(taken)


@contextmanager
def plain() -> Iterator[None]:
    """Within it a mixture is trained by its plain version, all pairs at once."""
    with (
        patch.object(MixtureOfLogits, "training_scores", lambda own, query, items: own(query, items).scores),
        patch.object(contrast, "equal_parts", lambda num, numbers, device: [slice(0, num)]),
    ):
        yield


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
