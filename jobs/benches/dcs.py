"""What do negatives from other workers bring, and what do they cost?

    python -m jobs.benches.dcs hit-rate --folder DATA [--data tldr] [--workers 1 2 4] [--seeds 0 1 2] [--steps 800]
        [--warm-up N]
    python -m jobs.benches.dcs step --folder DATA
    python -m jobs.benches.dcs memory

Held fixed: a transformer of two layers under a dot product, trained by sampled softmax; the local batch and the number
of steps, whatever the number of workers. Workers are processes of one thread under DistributedDataParallel over gloo.

`hit-rate`: in-batch negatives, cross-device ones as constants (NCS), and with their gradient (DCS). A yes is MoPQ's
Table 5: in-batch < NCS < DCS in hit rate at 10. `--warm-up N` trains the first N steps in-batch, as a model that has
been trained before. The mean cosine of items, 1 where all have collapsed to one, is written down too.
`step`: the median time of a step of each kind, taken in turns by the same two workers. A yes is DCS by `gather` within
1.3 times of in-batch.
`memory`: what one worker of a batch of 256 holds at its peak beyond what it began with, for the score matrix of all
workers' items and for a ring of blocks, which are made up here as they come by. A yes is a ring at 16,384 items within
1.5 times of one at 4,096.
"""

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from jobs.benches.record import Record, quiet
from rails_ray.data.batch import Sampler, TrainingBatch
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import by_name
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.losses.negatives import BatchRelevance, Roles, roles_among_copies
from rails_ray.modules.losses.sampled_softmax import ScaledLogit
from rails_ray.modules.losses.streaming_log_sum_exp import Sums
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, concatenate, tensors_of, with_tensors
from rails_ray.storage.filesystem import Storage
from rails_ray.training.collectives.each import from_each
from rails_ray.training.collectives.gather import gather_constants
from rails_ray.training.collectives.group import Place, num_workers, rank
from rails_ray.training.collectives.mean import mean_over_workers
from rails_ray.training.collectives.processes import in_processes
from rails_ray.training.collectives.ring import Ring, over_all_items
from rails_ray.training.contrast import Contrast, Gathered, PrimaryAndImage, Streamed, WithinBatch
from rails_ray.training.evaluation.report import validate
from rails_ray.training.loop import train
from rails_ray.training.objectives import Contrastive, Objective
from rails_ray.training.step import TrainingStep

LOCAL_BATCH = 32
MEMORY_BATCH = 256
BLOCK_SIZE = 256
WARM_UP = 5  # rounds
KINDS: dict[str, Contrast] = {
    "in-batch": WithinBatch(),
    "NCS": Gathered(gather_constants),
    "DCS": Gathered(),
    "DCS, primary and image": PrimaryAndImage(),
    "DCS, ring": Streamed(LOCAL_BATCH),
}


def config_of(folder: Path, data: str, num_workers: int, seed: int, num_steps: int) -> RunConfig:
    base = by_name("text-transformer-dot")
    return replace(
        base,
        seed=seed,
        data=DataConfig(folder=str(folder / data)),
        training=replace(base.training, num_steps=num_steps, batch_size=LOCAL_BATCH * num_workers),
    ).with_family(
        encoder=TransformerConfig(width=64, num_heads=2, hidden=256, max_length=24, dropout=0.1),
        components=ComponentsConfig(width=64, query_hidden=0, gate_hidden=64),
        similarity=DotProductConfig(temperature=0.05),
        loss=ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0),
    )


def prepared(config: RunConfig) -> tuple[DataSet, DualEncoder, Sampler]:
    data = read_data(config, Storage("."))
    model = DualEncoderTraining.of(config).model()
    DualEncoderTraining.of(config).learn_tokens(model, data)
    return data, model, DualEncoderTraining.of(config).sampler(model, data, rank(), num_workers())


def wrapped(step: TrainingStep) -> torch.nn.Module:
    return DistributedDataParallel(step) if num_workers() > 1 else step


def step_of(config: RunConfig, model: DualEncoder, kind: str) -> TrainingStep:
    step = DualEncoderTraining.of(config).training_step(model, mean_over_workers)
    step.contrast = KINDS[kind]
    return step


class After:
    """In-batch negatives for the first steps, then another kind."""

    def __init__(self, num_steps: int, kind: str) -> None:
        self.num_left = num_steps
        self.then = KINDS[kind]

    def __call__(
        self, model: DualEncoder, objective: Objective, query: QueryState, items: ItemState, batch: TrainingBatch
    ) -> tuple[Tensor, Tensor | None]:
        self.num_left -= 1
        contrast = self.then if self.num_left < 0 else KINDS["in-batch"]
        return contrast(model, objective, query, items, batch)


def hit_rates(config: RunConfig, kind: str, warm_up: int) -> dict[str, Any]:
    """Train on all workers of a group, and measure on the first."""
    data, model, sampler = prepared(config)
    step = step_of(config, model, kind)
    step.contrast = After(warm_up, kind)
    progress = train(
        wrapped(step),
        sampler.batch,
        config.training,
        seed=[config.seed, rank()],
        report=quiet,
        from_each=from_each,
    )
    if rank():
        return {}
    items = encode_items(model, model.item_features(data.item_inputs))
    report = validate(model, lambda: items, data.queries["test"], None)
    some = items.components[:: max(len(items) // 1000, 1), 0]
    return {
        "mean_item_cosine": float((some @ some.T).mean()),
        "seconds": progress.seconds,
        "loss": float(np.mean(progress.losses[-100:])),
        "hit_rate": report.hit_rate,
        "mrr": report.mrr,
        "queries": report.num_queries,
    }


def step_times(config: RunConfig, num_rounds: int) -> dict[str, list[float]]:
    """Seconds of each step of each kind, taken in turns."""
    _, model, sampler = prepared(config)
    steps = {kind: wrapped(step_of(config, model, kind)) for kind in KINDS}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(num_rounds + WARM_UP):
        batch = sampler.batch(number)
        for kind, step in steps.items():
            from_each(0.0)  # all begin at once
            started = time.perf_counter()
            step(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            from_each(0.0)
            if number >= WARM_UP:
                seconds[kind].append(time.perf_counter() - started)
    return seconds


def peak_bytes(form: str, num_items: int, block_size: int) -> int:
    """What one worker of a group with so many items holds at its peak, beyond what it began with."""
    torch.manual_seed(0)
    similarity = MixtureOfLogits(
        MixtureOfLogitsConfig(num_query_components=2, num_item_components=2, gate_hidden=16, logit_dropout=0.0)
    )
    objective = Contrastive(ScaledLogit(0.05), 0.0)
    query, own = random_query(), random_items(0)
    leaves = [part.requires_grad_() for part in tensors_of(query)]
    own_leaves = [part.requires_grad_() for part in tensors_of(own)]
    num_blocks = num_items // MEMORY_BATCH
    place = Place(0, [MEMORY_BATCH] * num_blocks)
    positive = torch.arange(MEMORY_BATCH)

    def roles_of(rows: Tensor, first: int) -> Roles:
        relevance = BatchRelevance(positive, positive)
        return roles_among_copies(rows, torch.zeros_like(rows, dtype=torch.bool), positive - first, positive, relevance)

    def sums_of(queries: list[Tensor], piece: list[Tensor], first: int) -> Sums:
        of_queries = with_tensors(query, queries)
        scores, _ = similarity(of_queries, with_tensors(own, piece[:-1]))
        return objective.sums(scores, of_queries, roles_of(piece[-1], first))

    turn = 0

    def shift(tensors: list[Tensor], num_lines: int) -> list[Tensor]:
        nonlocal turn
        turn += 1
        owner = -turn % num_blocks
        rows = torch.arange(MEMORY_BATCH) + owner * MEMORY_BATCH
        block = [part.detach() for part in tensors_of(random_items(owner))]
        return [*block, rows, *tensors[len(block) + 1 :]]

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: a new process has that of its parent
    before = resident("VmRSS")
    if form == "ring":
        loss = over_all_items(
            sums_of,
            lambda sums: objective.loss_of_sums(sums).mean(),
            leaves,
            [*own_leaves, positive],
            list(similarity.parameters()),
            Ring(place, shift, block_size),
        )
    else:
        blocks = [own, *(random_items(owner) for owner in range(1, num_blocks))]
        scores, _ = similarity(query, concatenate(blocks))
        loss = objective(scores, query, roles_of(torch.arange(num_items), 0)).mean()
    loss.backward()
    return resident("VmHWM") - before


def random_query() -> QueryState:
    components = F.normalize(torch.randn(MEMORY_BATCH, 2, 64), dim=-1)
    return QueryState(components, torch.randn(MEMORY_BATCH, 4), torch.full((MEMORY_BATCH,), 0.05))


def random_items(owner: int) -> ItemState:
    generator = torch.Generator().manual_seed(owner)
    components = F.normalize(torch.randn(MEMORY_BATCH, 2, 64, generator=generator), dim=-1)
    return ItemState(components, torch.randn(MEMORY_BATCH, 4, generator=generator), None)


def resident(name: str) -> int:
    """Bytes of this process now (VmRSS) or at their peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measure_hit_rates(arguments: argparse.Namespace, record: Record) -> None:
    cells = [
        (seed, workers, kind)
        for seed in arguments.seeds
        for workers in arguments.workers
        for kind in (("in-batch", "NCS", "DCS") if workers > 1 else ("in-batch",))
    ]
    for seed, workers, kind in track(cells, "hit rates"):
        config = config_of(arguments.folder, arguments.data, workers, seed, arguments.steps)
        measured = in_processes(partial(hit_rates, config, kind, arguments.warm_up), workers)[0]
        record.row(
            question="hit-rate",
            data=arguments.data,
            kind=kind,
            workers=workers,
            seed=seed,
            steps=arguments.steps,
            warm_up=arguments.warm_up,
            local_batch=LOCAL_BATCH,
            **measured,
        )


def measure_steps(arguments: argparse.Namespace, record: Record) -> None:
    for workers in arguments.workers:
        config = config_of(arguments.folder, arguments.data, workers, 0, arguments.steps)
        seconds = in_processes(partial(step_times, config, arguments.rounds), workers)[0]
        for kind, times in seconds.items():
            record.row(
                question="step",
                data=arguments.data,
                kind=kind,
                workers=workers,
                local_batch=LOCAL_BATCH,
                median_ms=1e3 * float(np.median(times)),
                quartiles_ms=[1e3 * float(q) for q in np.quantile(times, [0.25, 0.75])],
                rounds=len(times),
            )


def measure_memory(arguments: argparse.Namespace, record: Record) -> None:
    for form in ("gather", "ring"):
        for num_items in arguments.items:
            # In a process of its own: a peak never goes down again.
            (size,) = in_processes(partial(peak_bytes, form, num_items, BLOCK_SIZE), 1)
            record.row(
                question="memory",
                form=form,
                items=num_items,
                local_batch=MEMORY_BATCH,
                block_size=BLOCK_SIZE,
                peak_bytes=size,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["hit-rate", "step", "memory"])
    parser.add_argument("--folder", type=Path, help="the folder of all data sets")
    parser.add_argument("--data", default="tldr")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--warm-up", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--items", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    arguments = parser.parse_args()
    measure = {"hit-rate": measure_hit_rates, "step": measure_steps, "memory": measure_memory}
    measure[arguments.question](arguments, Record("dcs"))


if __name__ == "__main__":
    main()
