"""Progress of work on the cluster, seen from the process that started it."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import ray

POLL_S = 0.2  # seconds between looks

Result = TypeVar("Result")
OnProgress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, a word on how it goes)."""


@ray.remote(num_cpus=0)
class ProgressBoard:
    """The latest progress that any worker wrote."""

    def __init__(self) -> None:
        self._latest: tuple[int, int, str] | None = None

    def write(self, done: int, total: int, note: str) -> None:
        self._latest = (done, total, note)

    def read(self) -> tuple[int, int, str] | None:
        return self._latest


class Reporter:
    """Writes to a board, at most every POLL_S seconds."""

    def __init__(self, board: Any, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._board = board
        self._total = total
        self._clock = clock
        self._next = -float("inf")

    def __call__(self, done: int, loss: float) -> None:
        now = self._clock()
        if self._board is not None and (now >= self._next or done == self._total):
            self._next = now + POLL_S
            self._board.write.remote(done, self._total, f"loss {loss:.3f}")


def watch(work: Callable[[], Result], board: Any, on_progress: OnProgress) -> Result:
    """Run `work` in a thread and pass on what the board shows until it ends; its result, or its exception."""
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    # A daemon: Ctrl-C must not wait for work that ends with this process's connection to the cluster.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        latest = ray.get(board.read.remote())
        if latest is not None:
            on_progress(*latest)
        thread.join(POLL_S)
    if failure:
        raise failure[0]
    return outcome[0]
