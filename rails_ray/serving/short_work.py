"""Short work is done in the event loop, long work in a thread.

Work in a thread takes turns with the event loop: after each operation of torch it waits for the interpreter's lock, 5
ms at most. Short work that is done at once takes less time in all, and others wait no longer than it takes.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from contextvars import copy_context
from math import inf
from typing import TypeVar

Value = TypeVar("Value")

SHORT_S = 0.01  # longest that others may wait
KEPT = (
    0.9  # of the slowest time, after each further work: what was slow by chance is forgotten, what often is slow is not
)


class Slowest:
    """Seconds that the slowest of recent works took, by any key; inf before the first."""

    def __init__(self) -> None:
        self._seconds = defaultdict[Hashable, float](lambda: inf)

    def __getitem__(self, key: Hashable) -> float:
        return self._seconds[key]

    def note(self, key: Hashable, seconds: float) -> None:
        """Take note of how long a work took."""
        known = self._seconds[key]
        self._seconds[key] = seconds if known == inf else max(seconds, KEPT * known)


class ShortWork:
    """Work of one kind. It is short if works of about the same size were; the first goes to a thread.

    Args:
        clock: seconds of the thread that calls it, without its waits for others.
        threads: for long work; by default asyncio's own.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time, threads: Executor | None = None) -> None:
        self._clock, self._threads = clock, threads
        self._slowest = Slowest()  # by the bits of a size

    async def done(self, work: Callable[[], Value], size: int) -> Value:
        """The value of `work`, which must raise no StopIteration."""

        def timed() -> Value:
            began = self._clock()
            try:
                return work()
            finally:
                self._slowest.note(size.bit_length(), self._clock() - began)

        if self._slowest[size.bit_length()] <= SHORT_S:
            return timed()
        return await asyncio.get_running_loop().run_in_executor(self._threads, copy_context().run, timed)
