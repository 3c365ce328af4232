"""Encode in this process: a single worker needs no cluster, which takes seconds to start and gigabytes to hold.

It writes the bytes that tasks on a cluster write, as each of them has one thread too.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from rails_ray import counting
from rails_ray.families.encoding import OnProgress, Shown
from rails_ray.families.encoding_work import EncodingWork
from rails_ray.kernels.torch_threads import torch_pool
from rails_ray.storage.parts import PlannedPart

LOOK_S = 0.2  # between two looks at what is done


class InProcess:
    """The contract of `Executor`, in this process: files are scanned and shards are indexed by a thread a core, parts
    are written one by one."""

    def has_gpus(self, number: int) -> bool:
        return torch.cuda.is_available() and torch.cuda.device_count() >= number

    def remotely(self, function: Callable[..., Any], *arguments: Any, on_progress: OnProgress | None) -> Any:
        with counting.shown(on_progress or _nothing), one_thread():
            return function(*arguments)

    def each(self, function: Callable[..., None], arguments: Sequence[Sequence[Any]]) -> None:
        self._results(function, arguments)

    def gathered(
        self, together: Callable[..., Any], function: Callable[..., Any], arguments: Sequence[Sequence[Any]]
    ) -> Any:
        return together(*self._results(function, arguments))

    def _results(self, function: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> list[Any]:
        with one_thread(), torch_pool(min(os.cpu_count() or 1, len(arguments) or 1), "encode") as pool:
            return [running.result() for running in [pool.submit(function, *given) for given in arguments]]

    def write(
        self,
        work: EncodingWork,
        num_workers: int,
        num_gpus: float,
        items_done: Callable[[Shown], tuple[int, int, str]],
        on_progress: OnProgress | None,
    ) -> None:
        if num_gpus and not self.has_gpus(1):
            raise ValueError("use_gpu must be left out on a machine without a GPU that torch can use, got True")
        device = "cuda" if num_gpus else "cpu"
        work = replace(work, device=lambda: device, counted=_Looks(items_done, on_progress or _nothing).counted)
        with one_thread():
            for number in range(len(work.tasks)):
                work(number)
        if on_progress is not None:
            on_progress(*items_done({}))


class _Looks:
    """Passes on what is done, a few times a second."""

    def __init__(self, items_done: Callable[[Shown], tuple[int, int, str]], on_progress: OnProgress) -> None:
        self.items_done, self.on_progress = items_done, on_progress
        self.next_s = 0.0

    @contextmanager
    def counted(self, part: PlannedPart) -> Iterator[None]:
        def show(done: int, total: int, note: str) -> None:
            if time.monotonic() >= self.next_s:
                counted = {str(part.first_row): (done * part.num_items // total, part.num_items, note)}
                self.on_progress(*self.items_done(counted))
                self.next_s = time.monotonic() + LOOK_S

        with counting.shown(show):
            yield


def _nothing(done: int, total: int, note: str) -> None:
    pass


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch, as a task on a cluster has it: sums then come in its order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
