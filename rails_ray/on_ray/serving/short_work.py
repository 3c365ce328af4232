"""Short work is done in the event loop, long work in a thread.

Work in a thread takes turns with the event loop: after each operation of torch it waits for the interpreter's lock, 5
ms at most. Short work that is done at once takes less time in all, and delays others by as little.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from math import inf
from typing import TypeVar

Value = TypeVar("Value")

SHORT_S = 0.01  # that others may wait: a small part of what a refusal may take
KEPT = 0.5  # of the slowest time, at each further work: what was slow by chance is forgotten soon


class ShortWork:
    """Work of one kind. It is short if works of about the same size were; the first goes to a thread."""

    def __init__(self) -> None:
        self._slowest = defaultdict[int, float](lambda: inf)  # seconds of late, by the bits of a size

    async def done(self, work: Callable[[], Value], size: int) -> Value:
        """The value of `work`, which must raise no StopIteration."""
        bits = size.bit_length()
        known = self._slowest[bits]
        value, seconds = _timed(work) if known <= SHORT_S else await asyncio.to_thread(_timed, work)
        self._slowest[bits] = seconds if known == inf else max(seconds, KEPT * known)
        return value


def _timed(work: Callable[[], Value]) -> tuple[Value, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began
