"""Feedback: whether cut-offs keep live what they promise: clients report which items were relevant, and each search is
repeated.

    kept(q) = |items(q) and relevant(q)| / |relevant(q)|

The measured coverage is the mean of kept(q) over the queries whose cut-off is a coverage; beside it stands the mean of
what was promised. An item that the search leaves out for any reason, an excluded one say, was not kept. A list is as
long as that of a query that is asked alone. A search under a filter for which nobody calibrated is answered, but does
not count: calibration promised nothing of it.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rails_ray.errors import renaming
from rails_ray.schema.requests import FeedbackRequest, SearchRequest
from rails_ray.schema.responses import FeedbackResponse, QueryResult, SearchResponse
from rails_ray.serving.cutoffs import MOST_ITEMS
from rails_ray.serving.request_limits import Limits
from rails_ray.serving.running_means import RunningMean


@dataclass(frozen=True)
class Judged:
    """
    kept: what was measured.
    promised: what the cut-offs of the same queries promise.
    """

    kept: RunningMean = field(default_factory=RunningMean)
    promised: RunningMean = field(default_factory=RunningMean)

    def to_dict(self) -> dict[str, Any]:
        """Return what `/v1/index` says."""
        return {**self.kept.to_dict("coverage"), "promised": self.promised.mean}


class Feedback:
    """
    Args:
        limits: of a request.
        on_judged: called after each report of queries whose cut-off is a coverage.
    """

    def __init__(self, limits: Limits, on_judged: Callable[[Judged], None] = lambda _: None) -> None:
        self._limits, self._on_judged = limits, on_judged
        self._lock = threading.Lock()
        self.judged = Judged()

    def searches(self, request: FeedbackRequest) -> Iterator[tuple[SearchRequest, AbstractContextManager[None]]]:
        """The search of a report, in parts whose lists are not cut by the number of queries; each with a block in which
        sentences about a query name it as the report does.

        Raises:
            ValueError: if there are too many queries.
        """
        queries = request.search.queries
        self._limits.check_queries(len(queries))
        size = max(self._limits.max_answered_items // MOST_ITEMS, 1)
        for first in range(0, len(queries), size):
            part = request.search.model_copy(update={"queries": queries[first : first + size]})
            yield part, renaming(r"queries\[(\d+)\]", partial(_place, first))

    def judge(self, request: FeedbackRequest, head: SearchResponse, results: Sequence[QueryResult]) -> FeedbackResponse:
        """Which of the relevant items the results of those searches keep.

        Args:
            head: of one of the answers.
        """
        kept = [_kept(own, items) for own, items in zip(results, request.relevant, strict=True)]
        promised = head.cutoff.get("coverage")
        if promised is not None:
            with self._lock:
                for result, own, items in zip(results, kept, request.relevant, strict=True):
                    if own is not None and result.is_calibrated is not False:  # a filter leaves another promise
                        once = dict(zip(items, own, strict=True))  # a purchase may be reported twice
                        measured = self.judged.kept.plus(sum(once.values()) / len(once))
                        self.judged = Judged(measured, self.judged.promised.plus(float(promised)))
            self._on_judged(self.judged)
        return FeedbackResponse(version=head.version, cutoff=head.cutoff, kept=kept)


def _place(first: int, found: re.Match[str]) -> str:
    """The place in a report of a query of its part that begins with query `first`."""
    return f"search.queries[{first + int(found[1])}]"


def _kept(result: QueryResult, relevant: list[Any]) -> list[bool] | None:
    if result.error is not None:
        return None
    items = {str(item_id) for item_id in result.items[: result.num_kept]}  # as integers may be given in digits
    return [str(item_id) in items for item_id in relevant]
