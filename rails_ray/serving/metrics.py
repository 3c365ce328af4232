"""Metrics of a server's answers.

rails_ray_requests          path, status            requests that were answered or refused
rails_ray_stage_seconds     stage                   of a search; see `stages`
rails_ray_queries           method, certified       answered queries, and whether their lists are proven exact
rails_ray_list_length       method                  items of a list
rails_ray_truncated         method                  lists that k or max_items ended before the cut-off did
rails_ray_coverage                                  share of the corpus that a search went through
rails_ray_version           version                 1 for the version that is served
rails_ray_version_created_seconds                   when it was published, in seconds since 1970
rails_ray_version_since_seconds                     when the server began to answer from it, in seconds since 1970
rails_ray_version_refused                           1 while a newer version is refused; see `following`
rails_ray_deltas                                    its deltas
rails_ray_items             kind                    its items: live, those of them in deltas, and hidden rows
rails_ray_compaction_due                            1 when it is to be written anew
rails_ray_shadow_recall     bound                   see `shadow`; bound: mean, low, high
rails_ray_shadow_queries                            how many it is measured on
rails_ray_feedback_coverage bound                   see `feedback`; bound: promised, mean, low, high
rails_ray_feedback_queries                          how many it is measured on
rails_ray_cutoff_drift                              see `drift`; the distance
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from math import nan
from typing import Any

from rails_ray.schema.responses import QueryResult
from rails_ray.serving.drift import Distance
from rails_ray.serving.engine import Answered
from rails_ray.serving.feedback import Judged
from rails_ray.serving.instruments import Instrument, Instruments
from rails_ray.serving.running_means import RunningMean

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # bounds of buckets
LENGTHS = (0.5, 1.5, 2.5, 5.5, 10.5, 20.5, 50.5, 100.5, 200.5, 500.5, 1000.5)
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99, 0.9999, 1.0)


class Metrics:
    """Counts of a server, through all versions that it serves one after the other."""

    def __init__(self, instruments: Instruments) -> None:
        self._requests = instruments.counter("rails_ray_requests", "requests by status", ("path", "status"))
        self._seconds = instruments.histogram("rails_ray_stage_seconds", "time of a stage", SECONDS, ("stage",))
        self._queries = instruments.counter("rails_ray_queries", "answered queries", ("method", "certified"))
        self._lengths = instruments.histogram("rails_ray_list_length", "items of a list", LENGTHS, ("method",))
        self._truncated = instruments.counter("rails_ray_truncated", "lists that ended too soon", ("method",))
        self._coverage = instruments.histogram("rails_ray_coverage", "share of the corpus searched", SHARES)
        self._recall = instruments.gauge("rails_ray_shadow_recall", "recall of live queries", ("bound",))
        self._compared = instruments.gauge("rails_ray_shadow_queries", "queries of the shadow recall")
        self._kept = instruments.gauge("rails_ray_feedback_coverage", "coverage of live queries", ("bound",))
        self._judged = instruments.gauge("rails_ray_feedback_queries", "queries of the coverage by feedback")
        self._drift = instruments.gauge("rails_ray_cutoff_drift", "distance of live from calibration queries")
        self._version = instruments.gauge("rails_ray_version", "the version served", ("version",), is_one=True)
        self._created = instruments.gauge("rails_ray_version_created_seconds", "when that was published")
        self._since = instruments.gauge("rails_ray_version_since_seconds", "since when it answers")
        self._refused = instruments.gauge("rails_ray_version_refused", "whether a newer one is refused")
        self._deltas = instruments.gauge("rails_ray_deltas", "deltas of the version")
        self._items = instruments.gauge("rails_ray_items", "items of the version", ("kind",))
        self._due = instruments.gauge("rails_ray_compaction_due", "whether it is to be written anew")
        self._learnt = dict[tuple[str, ...], Callable[[float], None]]()  # gauges of what live queries tell

    def serves(self, facts: Mapping[str, Any], since: datetime) -> None:
        """Take note of the version that answers from now on; what was learnt of another one is forgotten.

        Args:
            facts: as in `Engine.facts`.
        """
        for show in self._learnt.values():
            show(nan)
        self._compared(0)
        self._judged(0)
        self._version(1, version=facts["version"])
        with suppress(ValueError):  # of another writer, who writes times otherwise
            self._created(datetime.fromisoformat(facts["created_at"]).timestamp())
        self._since(since.timestamp())
        self._deltas(facts["num_deltas"])
        for kind, name in (("live", "num_items"), ("delta", "num_in_deltas"), ("hidden", "num_hidden")):
            self._items(facts[name], kind=kind)
        self._due(facts["is_compaction_due"])

    def refused(self, is_refused: bool) -> None:
        """Set whether the current version is refused."""
        self._refused(is_refused)

    def request(self, path: str, status: int) -> None:
        """Count a request; `path` must be one of few."""
        self._requests(1, path=path, status=str(status))

    def answered(self, answered: Answered) -> Iterator[QueryResult]:
        """Count an answer; its results, each counted as it passes."""
        for stage, seconds in answered.stages.items():
            self._seconds(seconds, stage=stage)
        coverage = answered.head.coverage
        self._coverage(coverage.items_searched / max(coverage.num_items, 1))
        method = answered.head.method
        certified, num_truncated = Counter[bool](), 0
        for result in answered.results:
            certified[result.certificate.is_exact] += 1
            num_truncated += result.is_truncated
            self._lengths(len(result.items), method=method)
            yield result
        for is_exact, num_queries in certified.items():
            self._queries(num_queries, method=method, certified=str(is_exact).lower())
        if num_truncated:
            self._truncated(num_truncated, method=method)

    def shadow(self, recall: RunningMean) -> None:
        """Set the recall of live traffic."""
        self._compared(recall.num_queries)
        self._learn_mean("recall", self._recall, recall)

    def feedback(self, judged: Judged) -> None:
        """Set the coverage of live traffic."""
        self._judged(judged.kept.num_queries)
        self._learn_mean("kept", self._kept, judged.kept)
        if judged.promised.mean is not None:
            self._learn("kept", self._kept, judged.promised.mean, "promised")

    def drift(self, found: Distance) -> None:
        """Set how far live queries are from those that calibrated."""
        if found.distance is not None:
            self._learn("drift", self._drift, found.distance)

    def _learn_mean(self, name: str, gauge: Instrument, tally: RunningMean) -> None:
        for bound in ("mean", "low", "high"):
            value = getattr(tally, bound)
            if value is not None:
                self._learn(name, gauge, value, bound)

    def _learn(self, name: str, gauge: Instrument, value: float, bound: str | None = None) -> None:
        show = gauge if bound is None else partial(gauge, bound=bound)
        self._learnt[name, bound or ""] = show
        show(value)
