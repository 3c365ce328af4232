"""Tasks on the cluster: single calls, and numbered tasks by Ray Data, so many at a time.

Each process of a worker imports this module first, so it imports little.
"""

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import ray

from rails_ray.on_ray.failures import plain_errors

MAX_DEATHS = 8  # of the processes of one task; Ray Data itself would try for ever


@ray.remote(num_cpus=1)
def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns."""
    return function(*arguments)


def start_workers(modules: Sequence[str], num_workers: int) -> list[Any]:
    """Start processes that import modules, which takes seconds. Tasks that begin later take these processes.

    Returns:
        a reference for each. A task that begins before these are done may start one more process.
    """
    return [call.remote(_import, modules) for _ in range(num_workers)]


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)


def run_tasks(do: Callable[[int], None], num_tasks: int, num_workers: int, num_gpus: float) -> None:
    """Do all tasks with Ray Data, `num_workers` at a time.

    A GPU's workers are actors, as a process that has used one GPU cannot take another. On CPUs they are tasks, which
    take processes that have loaded everything before. The numbers are blocks already: what Ray Data would read by tasks
    of its own makes Ray start further processes, and give tasks to those.

    Args:
        num_gpus: GPUs, or part of one, for each worker.

    Raises:
        RailsRayError, ValueError: as a task does.
        UnavailableError: if the cluster cannot complete the work, or a task kills its process each time.
    """
    import ray.data  # which workers do not need
    from ray.util.annotations import RayDeprecationWarning

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.raise_original_map_exception = False, True
    size = min(num_workers, num_tasks)
    numbers = ray.data.from_arrow([pa.table({"id": [number]}) for number in range(num_tasks)])
    with plain_errors(), warnings.catch_warnings():
        # Ray Data has no other name for these (2.60), and without them a task that kills its process is tried for ever.
        warnings.simplefilter("ignore", RayDeprecationWarning)
        if num_gpus:
            actors = ray.data.ActorPoolStrategy(size=size)
            how: dict[str, Any] = {"batch_size": 1, "compute": actors, "num_cpus": 1, "num_gpus": num_gpus}
            deaths: dict[str, Any] = {"max_restarts": MAX_DEATHS, "max_task_retries": MAX_DEATHS}
            made = numbers.map_batches(TaskRunner, fn_constructor_args=(do,), **how, **deaths)
        else:
            tasks = ray.data.TaskPoolStrategy(size=size)
            made = numbers.map_batches(TaskRunner(do).__call__, compute=tasks, num_cpus=1, max_retries=MAX_DEATHS)
        made.materialize()


class TaskRunner:
    """Does tasks by their numbers; what Ray Data calls."""

    def __init__(self, do: Callable[[int], None]) -> None:
        self.do = do

    def __call__(self, batch: Any) -> Any:
        for number in batch["id"].tolist():
            self.do(number)
        return batch
