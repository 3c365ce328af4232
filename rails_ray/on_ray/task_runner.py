"""Tasks on the cluster: single calls, and numbered tasks, so many at a time.

Each process of a worker imports this module first, so it imports little.
"""

import importlib
import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

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
    """Do all tasks, `num_workers` at a time.

    A GPU's workers are actors of Ray Data, as a process that has used one GPU cannot take another. On CPUs they are
    plain tasks, which take processes that have loaded everything before.

    Args:
        num_gpus: GPUs, or part of one, for each worker.

    Raises:
        RailsRayError, ValueError: as a task does.
        UnavailableError: if the cluster cannot complete the work, or a task kills its process each time.
    """
    run = _by_actors if num_gpus else _by_tasks
    with plain_errors():
        run(do, num_tasks, min(num_workers, num_tasks), num_gpus)


def _by_tasks(do: Callable[[int], None], num_tasks: int, num_workers: int, num_gpus: float) -> None:
    # Ray Data would start its own helpers and further processes for its own reads, and give tasks to those.
    task, numbers = call.options(max_retries=MAX_DEATHS, name=type(do).__name__), iter(range(num_tasks))
    sent_once = ray.put(do)
    running = [task.remote(_do, sent_once, number) for number in islice(numbers, num_workers)]
    try:
        while running:
            [ended], running = ray.wait(running)
            ray.get(ended)
            running += [task.remote(_do, sent_once, number) for number in islice(numbers, 1)]
    finally:
        for left in running:  # one has failed
            ray.cancel(left, force=True)


def _do(do: Callable[[int], None], number: int) -> None:
    do(number)


class TaskRunner:
    """Does tasks by their numbers; what Ray Data calls."""

    def __init__(self, do: Callable[[int], None]) -> None:
        self.do = do

    def __call__(self, batch: Any) -> Any:
        for number in batch["id"].tolist():
            self.do(number)
        return batch


def _by_actors(do: Callable[[int], None], num_tasks: int, num_workers: int, num_gpus: float) -> None:
    import ray.data
    from ray.util.annotations import RayDeprecationWarning

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.raise_original_map_exception = False, True
    numbers = ray.data.range(num_tasks, override_num_blocks=num_tasks)
    actors = ray.data.ActorPoolStrategy(size=num_workers)
    how: dict[str, Any] = {"batch_size": 1, "compute": actors, "num_cpus": 1, "num_gpus": num_gpus}
    deaths: dict[str, Any] = {"max_restarts": MAX_DEATHS, "max_task_retries": MAX_DEATHS}
    with warnings.catch_warnings():
        # Ray Data has no other name for these (2.60), and without them a task that kills its process is tried for ever.
        warnings.simplefilter("ignore", RayDeprecationWarning)
        numbers.map_batches(TaskRunner, fn_constructor_args=(do,), **how, **deaths).materialize()
