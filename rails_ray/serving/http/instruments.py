"""Metrics of one process, as Prometheus reads them at `/metrics`; of all workers of a server, where there are several.

Workers keep what they count in the folder that SHARED names before prometheus_client is imported. Of a gauge the newest
value counts.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import prometheus_client as prometheus
from prometheus_client import Metric, multiprocess
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rails_ray.serving.instruments import Instrument

SHARED = "PROMETHEUS_MULTIPROC_DIR"


class PrometheusMetrics:
    """The contract of `Instruments`."""

    def __init__(self) -> None:
        self._registry, self._of_this = prometheus.CollectorRegistry(), prometheus.CollectorRegistry()
        self._is_shared = SHARED in os.environ

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`; its name ends with `_total`."""
        of = _by_labels(prometheus.Counter(name, about, labels, registry=self._registry))
        return lambda value, **given: of(*given.items()).inc(value)

    def gauge(self, name: str, about: str, labels: Sequence[str] = (), *, is_one: bool = False) -> Instrument:
        """The contract of `Instruments`; nothing is shown before it has a value."""
        if is_one:
            only = _OnlyOne(name, about, labels)
            self._of_this.register(only)
            return only
        made = cache(
            lambda: _by_labels(
                prometheus.Gauge(name, about, labels, registry=self._registry, multiprocess_mode="mostrecent")
            )
        )
        return lambda value, **given: made()(*given.items()).set(value)

    def histogram(self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> Instrument:
        """The contract of `Instruments`."""
        of = _by_labels(prometheus.Histogram(name, about, labels, buckets=bounds, registry=self._registry))
        return lambda value, **given: of(*given.items()).observe(value)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        of_this = prometheus.generate_latest(self._of_this)
        if not self._is_shared:
            return prometheus.generate_latest(self._registry) + of_this
        of_all = prometheus.CollectorRegistry()
        collector: Any = multiprocess.MultiProcessCollector
        collector(of_all)
        return prometheus.generate_latest(of_all) + of_this


class _OnlyOne(Collector):
    """A gauge of one value: of the process that is asked, as a file that workers share would keep all labels."""

    def __init__(self, name: str, about: str, labels: Sequence[str]) -> None:
        self._name, self._about, self._labels = name, about, labels
        self._last: tuple[list[str], float] | None = None

    def __call__(self, value: float, **labels: str) -> None:
        self._last = [labels[name] for name in self._labels], value

    def collect(self) -> Iterator[Metric]:
        """The contract of prometheus_client's collectors."""
        if self._last is not None:
            found = GaugeMetricFamily(self._name, self._about, labels=self._labels)
            found.add_metric(*self._last)
            yield found


def _by_labels(made: Any) -> Callable[..., Any]:
    """The metric by its labels; kept, because finding it takes longer than counting."""
    return cache(lambda *labels: made.labels(**dict(labels)) if labels else made)
