"""Metrics of a replica, which Ray collects on each machine with its own; Serve adds application, deployment and
replica to the labels.

Ray takes some 50 microseconds to note a value. What many requests add is therefore noted once a second.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ray.serve import metrics

from rails_ray.answering.instruments import Instrument

EVERY_S = 1.0  # between two notes of a sum
Labels = tuple[tuple[str, str], ...]


class OfReplica:
    """The contract of `Instruments`."""

    def __init__(self) -> None:
        self._sums = list[_Sum]()
        threading.Thread(target=self._note, name="metrics", daemon=True).start()

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        return self._summed(metrics.Counter(name, about, _keys(labels)).inc)

    def gauge(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        made = metrics.Gauge(name, about, _keys(labels))
        return lambda value, **given: made.set(value, given)

    def histogram(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        made = metrics.Histogram(name, about, list(bounds), _keys(labels))
        return lambda value, **given: made.observe(value, given)

    def _summed(self, note: Callable[[float, dict[str, str]], None]) -> Instrument:
        self._sums.append(_Sum(note))
        return self._sums[-1].add

    def _note(self) -> None:
        while True:
            time.sleep(EVERY_S)
            for own in list(self._sums):
                own.note()


class _Sum:
    """What is added up until it is noted."""

    def __init__(self, note: Callable[[float, dict[str, str]], None]) -> None:
        self._note, self._lock, self._sums = note, threading.Lock(), defaultdict[Labels, float](float)

    def add(self, value: float, **labels: str) -> None:
        """The contract of `Instrument`."""
        with self._lock:
            self._sums[tuple(sorted(labels.items()))] += value

    def note(self) -> None:
        with self._lock:
            sums, self._sums = self._sums, defaultdict(float)
        for labels, value in sums.items():
            self._note(value, dict(labels))


def _keys(labels: Sequence[str]) -> Any:  # Ray's annotation says one key; it takes any number
    return tuple(labels)
