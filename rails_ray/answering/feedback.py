"""Whether cut-offs keep live what they promise: clients report which items were relevant, and each search is repeated.

    kept(q) = |items(q) and relevant(q)| / |relevant(q)|

The mean of kept over the queries whose cut-off is a coverage is the coverage that was measured, beside the mean of what
was promised. An item that the search leaves out for any reason, an excluded one say, was not kept.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rails_ray.answering.engine import Answered
from rails_ray.answering.schemas import FeedbackRequest, FeedbackResponse, QueryResult, SearchRequest
from rails_ray.answering.tallies import Tally


@dataclass(frozen=True)
class Judged:
    """
    kept: what was measured.
    promised: what the cut-offs of the same queries promise.
    """

    kept: Tally = field(default_factory=Tally)
    promised: Tally = field(default_factory=Tally)

    def to_dict(self) -> dict[str, Any]:
        """What `/v1/index` tells."""
        return {**self.kept.to_dict("coverage"), "promised": self.promised.mean}


class Feedback:
    """
    Args:
        search: carries out a request.
        on_judged: called after each report of queries whose cut-off is a coverage.
    """

    def __init__(
        self,
        search: Callable[[SearchRequest], Awaitable[Answered]],
        on_judged: Callable[[Judged], None] = lambda _: None,
    ) -> None:
        self._search, self._on_judged = search, on_judged
        self.judged = Judged()

    async def judge(self, request: FeedbackRequest) -> FeedbackResponse:
        """Which of the relevant items the search keeps. Raises what a search of the whole corpus does."""
        found = await self._search(request.search.model_copy(update={"min_coverage": 1.0}))
        results = await asyncio.to_thread(list, found.results)
        kept = [_kept(own, items) for own, items in zip(results, request.relevant, strict=True)]
        promised = found.head.cutoff.get("coverage")
        if promised is not None:
            for own in kept:
                if own is not None:
                    measured = self.judged.kept.plus(sum(own) / len(own))
                    self.judged = Judged(measured, self.judged.promised.plus(float(promised)))
            self._on_judged(self.judged)
        return FeedbackResponse(version=found.head.version, cutoff=found.head.cutoff, kept=kept)


def _kept(result: QueryResult, relevant: list[Any]) -> list[bool] | None:
    if result.error is not None:
        return None
    items = set(result.items)
    return [item in items for item in relevant]
