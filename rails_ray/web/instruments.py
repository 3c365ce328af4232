"""Metrics of one process, as Prometheus reads them at `/metrics`."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import prometheus_client as prometheus

from rails_ray.answering.instruments import Instrument


class OfProcess:
    """The contract of `Instruments`."""

    def __init__(self) -> None:
        self._registry = prometheus.CollectorRegistry()

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`; its name ends with `_total`."""
        made = prometheus.Counter(name, about, labels, registry=self._registry)
        return lambda value, **given: _of(made, given).inc(value)

    def gauge(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`; nothing is shown before it has a value."""
        made = cache(partial(prometheus.Gauge, name, about, labels, registry=self._registry))
        return lambda value, **given: _of(made(), given).set(value)

    def histogram(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        made = prometheus.Histogram(name, about, labels, buckets=bounds, registry=self._registry)
        return lambda value, **given: _of(made, given).observe(value)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return prometheus.generate_latest(self._registry)


def _of(made: Any, labels: dict[str, str]) -> Any:
    return made.labels(**labels) if labels else made
