"""Metrics of a replica, which Ray collects on each machine with its own; Serve adds application, deployment and
replica to the labels."""

from collections.abc import Sequence
from typing import Any

from ray.serve import metrics

from rails_ray.answering.metrics import Instrument


class OfReplica:
    """The contract of `Instruments`."""

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        made = metrics.Counter(name, about, _keys(labels))
        return lambda value, **given: made.inc(value, given)

    def gauge(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        made = metrics.Gauge(name, about, _keys(labels))
        return lambda value, **given: made.set(value, given)

    def histogram(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        made = metrics.Histogram(name, about, list(bounds), _keys(labels))
        return lambda value, **given: made.observe(value, given)


def _keys(labels: Sequence[str]) -> Any:  # Ray's annotation says one key; it takes any number
    return tuple(labels)
