"""Metrics of a replica, which Ray collects on each machine with its own; Serve adds application, deployment and
replica to the labels.

Ray takes some 50 microseconds to note a value. What many requests add is therefore noted once a second. It forgets a
gauge that is not set any more, so the last values are set again as often.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ray.serve import metrics

from rails_ray.answering.instruments import Instrument

EVERY_S = 1.0  # between two notes
Labels = tuple[tuple[str, str], ...]


class OfReplica:
    """The contract of `Instruments`."""

    def __init__(self) -> None:
        self._noted = list[_Sum | _Last]()
        threading.Thread(target=self._note, name="metrics", daemon=True).start()

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        self._noted.append(_Sum(metrics.Counter(name, about, _keys(labels)).inc))
        return self._noted[-1].add

    def gauge(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        self._noted.append(_Last(metrics.Gauge(name, about, _keys(labels)).set))
        return self._noted[-1].add

    def histogram(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        made = metrics.Histogram(name, about, list(bounds), _keys(labels))
        return lambda value, **given: made.observe(value, given)

    def _note(self) -> None:
        while True:
            time.sleep(EVERY_S)
            for own in list(self._noted):
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


class _Last:
    """The last value of a gauge."""

    def __init__(self, note: Callable[[float, dict[str, str]], None]) -> None:
        self._note, self._values = note, dict[Labels, float]()

    def add(self, value: float, **labels: str) -> None:
        """The contract of `Instrument`."""
        self._values[tuple(sorted(labels.items()))] = value

    def note(self) -> None:
        for labels, value in list(self._values.items()):
            self._note(value, dict(labels))


def _keys(labels: Sequence[str]) -> Any:  # Ray's annotation says one key; it takes any number
    return tuple(labels)
