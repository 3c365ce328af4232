"""Shadow recall: a share of live searches is searched again exactly in the background, and the two lists are compared.

    recall(q) = |items(q) and exact(q)| / |exact(q)|,     1 if exact(q) is empty

Both lists are cut as the request says, so that the recall is that of what clients get. Left out are queries with an
error, and searches that did not reach the whole corpus.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import inf

from rails_ray.errors import RailsRayError
from rails_ray.schema.requests import SearchRequest
from rails_ray.schema.responses import QueryResult
from rails_ray.schema.search_params import PARAM_NAMES
from rails_ray.serving.deadlines import ends_at
from rails_ray.serving.engine import Answered
from rails_ray.serving.running_means import RunningMean

EXACT = ("brute_force", "two_pass")  # methods


class Shadow:
    """
    Args:
        search: carries out a request.
        fraction: of the requests that are not exact by their method, in [0, 1].
        on_recall: called after each comparison.
    """

    def __init__(
        self,
        search: Callable[[SearchRequest], Awaitable[Answered]],
        fraction: float,
        on_recall: Callable[[RunningMean], None] = lambda _: None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._search, self._fraction, self._on_recall, self._draw = search, fraction, on_recall, draw
        self._comparing: asyncio.Task[None] | None = None
        self.recall = RunningMean()

    def seen(self, request: SearchRequest, answered: Answered) -> Answered:
        """Return the answer; it is compared in the background if it is drawn and no other comparison is under way."""
        is_busy = self._comparing is not None and not self._comparing.done()
        is_comparable = answered.head.method not in EXACT and request.budget is None and _is_whole(answered)
        if is_busy or not is_comparable or self._draw() >= self._fraction:
            return answered
        results = list(answered.results)
        self._comparing = asyncio.create_task(self._compare(request, results))
        return replace(answered, results=iter(results))

    async def _compare(self, request: SearchRequest, results: Sequence[QueryResult]) -> None:
        ends_at.set(inf)  # no client waits for it
        exactly = {"method": "brute_force", **dict.fromkeys(PARAM_NAMES)}
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
            self.recall = self.recall.plus(share)
        self._on_recall(self.recall)


def _is_whole(answered: Answered) -> bool:
    coverage = answered.head.coverage
    return coverage.items_searched == coverage.num_items
