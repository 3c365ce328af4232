"""Numbered tasks with Ray Data, so many at a time."""

import warnings
from collections.abc import Callable
from typing import Any

import ray.data
from ray.data import ActorPoolStrategy, TaskPoolStrategy
from ray.util.annotations import RayDeprecationWarning

from rails_ray.on_ray.failures import plain_errors

MAX_DEATHS = 8  # of the processes of one task; Ray Data itself would try for ever


class TaskRunner:
    """Does tasks by their numbers; what Ray Data calls."""

    def __init__(self, do: Callable[[int], None]) -> None:
        self.do = do

    def __call__(self, batch: Any) -> Any:
        for number in batch["id"].tolist():
            self.do(number)
        return batch


def run_tasks(do: Callable[[int], None], num_tasks: int, num_workers: int, num_gpus: float) -> None:
    """Do all tasks, `num_workers` at a time.

    A GPU's workers are actors, as a process that has used one GPU cannot take another. On CPUs they are tasks, which
    take processes that have loaded everything before.

    Args:
        num_gpus: GPUs, or part of one, for each worker.

    Raises:
        RailsRayError, ValueError: as a task does.
        UnavailableError: if the cluster cannot complete the work, or a task kills its process each time.
    """
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.raise_original_map_exception = False, True
    size = min(num_workers, num_tasks)
    numbers = ray.data.range(num_tasks, override_num_blocks=num_tasks)
    with plain_errors(), warnings.catch_warnings():
        # Ray Data has no other name for these (2.60), and without them a task that kills its process is tried for ever.
        warnings.simplefilter("ignore", RayDeprecationWarning)
        if num_gpus:
            actors = ActorPoolStrategy(size=size)
            how: dict[str, Any] = {"batch_size": 1, "compute": actors, "num_cpus": 1, "num_gpus": num_gpus}
            deaths: dict[str, Any] = {"max_restarts": MAX_DEATHS, "max_task_retries": MAX_DEATHS}
            made = numbers.map_batches(TaskRunner, fn_constructor_args=(do,), **how, **deaths)
        else:
            tasks = TaskPoolStrategy(size=size)
            made = numbers.map_batches(TaskRunner(do).__call__, compute=tasks, num_cpus=1, max_retries=MAX_DEATHS)
        made.materialize()
