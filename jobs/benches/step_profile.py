"""What does a training step spend its time on?

The step of each recipe in one process, as the training loop takes it: the batch is drawn, moved and scored, the loss
goes back, AdamW steps. Each operator's own time is counted to one kind of work; what none accounts for is Python's.

    python -m jobs.benches.step_profile --data.folder FOLDER_OF_ML1M [--steps 20]

A yes is that nothing but arithmetic (matrix products, sums of embeddings, element-wise work, reductions, the optimiser)
takes more than 15%. The seconds are those of steps that nobody profiles, as a profiler slows Python and nothing else.
"""

import time
from dataclasses import dataclass, replace

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile, record_function

from jobs.benches.record import Record, quiet
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import training_family
from rails_ray.storage.filesystem import Storage
from rails_ray.training.loop import train
from rails_ray.training.step import in_one_process

SAMPLING = "draw the batch"
KINDS = {  # by the beginning of an operator's name, the first that fits
    SAMPLING: ("draw the batch",),
    "optimiser": ("aten::_fused_adamw",),
    "random numbers": ("aten::bernoulli", "aten::native_dropout", "aten::rand", "aten::uniform"),
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_dot", "mkldnn"),
    "sums of embeddings": ("aten::_embedding_bag",),
    "allocation and views": (
        "aten::empty", "aten::new", "aten::resize", "aten::to", "aten::view", "aten::reshape", "aten::transpose",
        "aten::as_strided", "aten::expand", "aten::slice", "aten::select", "aten::permute", "aten::unsqueeze",
        "aten::squeeze", "aten::detach", "aten::lift", "aten::item", "aten::_local_scalar", "aten::unflatten",
    ),
    "look-ups": (
        "aten::index", "aten::_index", "aten::embedding", "aten::gather", "aten::scatter", "aten::repeat_interleave",
    ),
    "copies": (
        "aten::copy_", "aten::cat", "aten::clone", "aten::fill_", "aten::zero", "aten::constant_pad",
    ),
    "element-wise and reductions": ("aten::",),
}  # fmt: skip
ARITHMETIC = ("optimiser", "matrix products", "sums of embeddings", "element-wise and reductions")


@dataclass(frozen=True)
class Arguments:
    data: DataConfig
    recipes: tuple[str, ...] = ("emoji-mol", "ml1m-sasrec", "ml1m-sasrec-mol")
    steps: int = 20
    threads: int = 2


def main(arguments: Arguments) -> None:
    torch.set_num_threads(arguments.threads)
    record, console = Record("step_profile"), Console()
    table = Table("", *arguments.recipes, title=f"share of a training step, {arguments.threads} threads")
    rows = {recipe: shares(config_of(recipe, arguments), arguments.steps) for recipe in arguments.recipes}
    for recipe, (seconds, by_kind) in rows.items():
        record.row(recipe=recipe, threads=arguments.threads, seconds_per_step=seconds, **by_kind)
    for kind in (*KINDS, "Python"):
        table.add_row(kind, *(f"{by_kind[kind]:.1%}" for _, by_kind in rows.values()))
    table.add_row("seconds a step", *(f"{seconds:.3f}" for seconds, _ in rows.values()))
    console.print(table)
    for recipe, (_, by_kind) in rows.items():
        largest, share = max(
            ((kind, share) for kind, share in by_kind.items() if kind not in ARITHMETIC), key=lambda pair: pair[1]
        )
        console.print(f"{recipe}: most beside arithmetic is {largest}, {share:.1%}")


def config_of(recipe: str, arguments: Arguments) -> RunConfig:
    config = by_name(recipe)
    return replace(config, data=arguments.data) if training_family(config).form.packaged is None else config


def shares(config: RunConfig, num_steps: int) -> tuple[float, dict[str, float]]:
    """Seconds a step, and the share of each kind of work."""
    data = read_data(config, Storage("rails-ray-data"))
    config = for_data(config, data)
    model = DualEncoderTraining.of(config).model()
    sampler = DualEncoderTraining.of(config).sampler(model, data)
    step = DualEncoderTraining.of(config).training_step(model, in_one_process)

    def batch_of(number: int) -> object:
        with record_function(SAMPLING):
            return sampler.batch(number)

    def steps(count: int) -> float:
        started = time.perf_counter()
        sizes = replace(config.training, num_steps=count, validate_every=0)
        train(step, batch_of, sizes, seed=[0], report=quiet)
        return time.perf_counter() - started

    steps(2)  # first calls make caches
    seconds = steps(num_steps)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        steps(num_steps)
    by_kind = dict.fromkeys([*KINDS, "Python"], 0.0)
    for event in profiled.key_averages():
        kind = next((kind for kind, names in KINDS.items() if event.key.startswith(names)), None)
        if kind is not None:
            by_kind[kind] += event.self_cpu_time_total / 1e6 / seconds
    total = max(sum(by_kind.values()), 1.0)  # above 1 where the profiled steps were the slower ones
    by_kind = {kind: share / total for kind, share in by_kind.items()}
    by_kind["Python"] = 1 - sum(by_kind.values())
    return seconds / num_steps, by_kind


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
