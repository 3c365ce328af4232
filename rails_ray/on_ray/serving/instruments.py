"""Metrics of a replica, which Ray collects on each machine with its own; Serve adds application, deployment and
replica to the labels.

Ray takes some 50 microseconds to note a value. What many requests add is therefore noted once a second, and of a
histogram's values a sample: each second counts alike, however many requests it had. Ray forgets a gauge that is not set
any more, so the last values are set again as often.
"""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ray.serve import metrics

from rails_ray.serving.instruments import Instrument

EVERY_S = 1.0  # between two notes
MOST_NOTED = 20  # values of a histogram with the same labels between two notes
Labels = tuple[tuple[str, str], ...]


class RayMetrics:
    """The contract of `Instruments`."""

    def __init__(self) -> None:
        self._noted = list[_Sum | _Last | _Sample]()
        threading.Thread(target=self._note, name="metrics", daemon=True).start()

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        self._noted.append(_Sum(metrics.Counter(name, about, _keys(labels)).inc))
        return self._noted[-1].add

    def gauge(self, name: str, about: str, labels: Sequence[str] = (), *, is_one: bool = False) -> Instrument:
        """The contract of `Instruments`."""
        self._noted.append(_Last(metrics.Gauge(name, about, _keys(labels)).set, is_one))
        return self._noted[-1].add

    def histogram(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        made = metrics.Histogram(name, about, list(bounds), _keys(labels))
        self._noted.append(_Sample(made.observe))
        return self._noted[-1].add

    def _note(self) -> None:
        while True:
            time.sleep(EVERY_S)
            for own in list(self._noted):
                own.note()


class _Sum:
    """Counts that are added up until they are noted."""

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


class _Sample:
    """Values until they are noted, each as likely kept as any other of these labels."""

    def __init__(self, note: Callable[[float, dict[str, str]], None]) -> None:
        self._note, self._lock = note, threading.Lock()
        self._kept, self._num_seen = defaultdict[Labels, list[float]](list), Counter[Labels]()

    def add(self, value: float, **labels: str) -> None:
        """The contract of `Instrument`."""
        own = tuple(sorted(labels.items()))
        with self._lock:
            self._num_seen[own] += 1
            if self._num_seen[own] <= MOST_NOTED:
                self._kept[own].append(value)
            elif (place := random.randrange(self._num_seen[own])) < MOST_NOTED:
                self._kept[own][place] = value

    def note(self) -> None:
        with self._lock:
            kept, self._kept, self._num_seen = self._kept, defaultdict(list), Counter()
        for labels, values in kept.items():
            for value in values:
                self._note(value, dict(labels))


class _Last:
    """The last value of a gauge."""

    def __init__(self, note: Callable[[float, dict[str, str]], None], is_one: bool) -> None:
        self._note, self._is_one, self._values = note, is_one, dict[Labels, float]()

    def add(self, value: float, **labels: str) -> None:
        """The contract of `Instrument`."""
        newest = {tuple(sorted(labels.items())): value}
        if self._is_one:
            self._values = newest
        else:
            self._values.update(newest)

    def note(self) -> None:
        for labels, value in list(self._values.items()):
            self._note(value, dict(labels))


def _keys(labels: Sequence[str]) -> Any:  # Ray's annotation says one key; it takes any number
    return tuple(labels)
