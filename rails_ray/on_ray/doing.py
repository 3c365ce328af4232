"""Numbered tasks with Ray Data, so many at a time."""

from collections.abc import Callable
from typing import Any

import ray.data
from ray.data import ActorPoolStrategy, TaskPoolStrategy

from rails_ray.on_ray.failures import told_plainly


class Doer:
    """Does tasks by their numbers; what Ray Data calls."""

    def __init__(self, do: Callable[[int], None]) -> None:
        self.do = do

    def __call__(self, batch: Any) -> Any:
        for number in batch["id"].tolist():
            self.do(number)
        return batch


def do_all(do: Callable[[int], None], num_tasks: int, num_workers: int, num_gpus: float) -> None:
    """Do all tasks, `num_workers` at a time.

    A GPU's workers are actors, as a process that has used one GPU cannot take another. On CPUs they are tasks, which
    take processes that have loaded everything before.

    Args:
        num_gpus: GPUs, or part of one, for each worker.

    Raises:
        RailsRayError, ValueError: as a task does.
        UnavailableError: if the cluster cannot complete the work.
    """
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.raise_original_map_exception = False, True
    size = min(num_workers, num_tasks)
    numbers = ray.data.range(num_tasks, override_num_blocks=num_tasks)
    with told_plainly():
        if num_gpus:
            pool = ActorPoolStrategy(size=size)
            how: dict[str, Any] = {"batch_size": 1, "compute": pool, "num_cpus": 1, "num_gpus": num_gpus}
            made = numbers.map_batches(Doer, fn_constructor_args=(do,), **how)
        else:
            made = numbers.map_batches(Doer(do).__call__, compute=TaskPoolStrategy(size=size), num_cpus=1)
        made.materialize()
