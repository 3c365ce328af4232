"""Clocks that tell what a test says."""

from collections.abc import Callable, Iterator


def clock_of(*times: float) -> Callable[[], float]:
    ticks: Iterator[float] = iter(times)
    return lambda: next(ticks)


class Clock:
    """Seconds since 1970 that pass when they are waited for."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
