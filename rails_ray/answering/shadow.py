"""Shadow recall: a share of live searches is searched again exactly in the background, and the two lists are compared.

    recall(q) = |items(q) and exact(q)| / |exact(q)|,     1 if exact(q) is empty

Both lists are cut as the request says, so that the recall is that of what clients get. The interval is Wilson's, at
95%, on the mean over queries: a recall in [0, 1] varies at most as much as a coin of the same mean. Left out are
queries with an error, and searches that did not reach the whole corpus.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rails_ray.answering.engine import Answered
from rails_ray.answering.schemas import QueryResult, SearchRequest
from rails_ray.errors import RailsRayError

EXACT = ("brute_force", "two_pass")  # methods
Z = 1.959964  # of a normal distribution, for 95%


@dataclass(frozen=True)
class Recall:
    """
    num_queries: queries that were searched both ways.
    total: sum of their recalls.
    """

    num_queries: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float | None:
        """None if no query was compared."""
        return self.total / self.num_queries if self.num_queries else None

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return self._end(-1)

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return self._end(1)

    def _end(self, sign: int) -> float | None:
        mean, n = self.mean, self.num_queries
        if mean is None:
            return None
        spread = Z * math.sqrt(max(mean * (1 - mean), 0.0) / n + Z**2 / (4 * n**2))
        return min(max((mean + Z**2 / (2 * n) + sign * spread) / (1 + Z**2 / n), 0.0), 1.0)

    def to_dict(self) -> dict[str, Any]:
        """What `/v1/index` tells."""
        return {"num_queries": self.num_queries, "recall": self.mean, "low": self.low, "high": self.high}


class Shadow:
    """
    Args:
        search: carries out a request.
        share: of the requests that are not exact by their method, in [0, 1].
        on_recall: called after each comparison.
    """

    def __init__(
        self,
        search: Callable[[SearchRequest], Awaitable[Answered]],
        share: float,
        on_recall: Callable[[Recall], None] = lambda _: None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._search, self._share, self._on_recall, self._draw = search, share, on_recall, draw
        self._comparing: asyncio.Task[None] | None = None
        self.recall = Recall()

    def seen(self, request: SearchRequest, answered: Answered) -> Answered:
        """The same answer; it is compared in the background if it is drawn and no other comparison is under way."""
        is_busy = self._comparing is not None and not self._comparing.done()
        is_comparable = request.method not in EXACT and request.budget is None and _is_whole(answered)
        if is_busy or not is_comparable or self._draw() >= self._share:
            return answered
        results = list(answered.results)
        self._comparing = asyncio.create_task(self._compare(request, results))
        return replace(answered, results=iter(results))

    async def _compare(self, request: SearchRequest, results: Sequence[QueryResult]) -> None:
        exactly = {"method": "brute_force", "num_candidates": None, "num_per_embedding": None, "num_probes": None}
        try:
            exact = await self._search(request.model_copy(update=exactly))
        except (RailsRayError, ValueError):  # a shard is missing: there is nothing to compare with
            return
        if not _is_whole(exact):
            return
        for own, best in zip(results, await asyncio.to_thread(list, exact.results), strict=True):
            if own.error is not None or best.error is not None:
                continue
            share = len(set(own.items) & set(best.items)) / len(best.items) if best.items else 1.0
            self.recall = Recall(self.recall.num_queries + 1, self.recall.total + share)
        self._on_recall(self.recall)


def _is_whole(answered: Answered) -> bool:
    coverage = answered.head.coverage
    return coverage.items_searched == coverage.num_items
