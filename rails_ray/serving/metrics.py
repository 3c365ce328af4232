"""Metrics of a server's answers.

rails_ray_requests          path, status            requests that were answered or refused
rails_ray_stage_seconds     stage                   of a search; see `stages`
rails_ray_queries           method, certified       answered queries, and whether their lists are proven exact
rails_ray_list_length       method                  items of a list
rails_ray_truncated         method                  lists that k or max_items ended before the cut-off did
rails_ray_coverage                                  share of the corpus that a search went through
rails_ray_version           version                 1 for the version that is served
rails_ray_shadow_recall     bound                   see `shadow`; bound: mean, low, high
rails_ray_shadow_queries                            how many it is measured on
rails_ray_feedback_coverage bound                   see `feedback`; bound: promised, mean, low, high
rails_ray_feedback_queries                          how many it is measured on
rails_ray_cutoff_drift                              see `drift`; the distance
"""

from collections import Counter
from collections.abc import Iterator

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
    """
    Args:
        version: name of the version that is served.
    """

    def __init__(self, instruments: Instruments, version: str) -> None:
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
        instruments.gauge("rails_ray_version", "the version that is served", ("version",))(1, version=version)

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
        _set(self._recall, recall)

    def feedback(self, judged: Judged) -> None:
        """Set the coverage of live traffic."""
        self._judged(judged.kept.num_queries)
        _set(self._kept, judged.kept)
        if judged.promised.mean is not None:
            self._kept(judged.promised.mean, bound="promised")

    def drift(self, found: Distance) -> None:
        """Set how far live queries are from those that calibrated."""
        if found.distance is not None:
            self._drift(found.distance)


def _set(gauge: Instrument, tally: RunningMean) -> None:
    for bound in ("mean", "low", "high"):
        value = getattr(tally, bound)
        if value is not None:
            gauge(value, bound=bound)
