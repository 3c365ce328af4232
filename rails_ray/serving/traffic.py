"""Live searches: those that come at the same time are one, and all are counted, compared and judged.

What a server learns of its traffic is all here, so that every server learns the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from rails_ray.schema.requests import FeedbackRequest, SearchRequest
from rails_ray.schema.responses import FeedbackResponse, QueryResult
from rails_ray.serving.batching import Batches
from rails_ray.serving.drift import Drift
from rails_ray.serving.engine import Answered, Engine
from rails_ray.serving.feedback import Feedback
from rails_ray.serving.instruments import Instruments
from rails_ray.serving.metrics import Metrics
from rails_ray.serving.shadow import Shadow


class Traffic:
    """
    Args:
        search: carries out a request.
        engine: the engine that it is carried out by.
        shadow_fraction: of the searches, which are searched again exactly; see `Shadow`.
        on_search: called with the name of the version and each request for a search before it is carried out; None
            for nothing.
        metrics: what another version's traffic counted, which goes on; by default they begin.
    """

    def __init__(
        self,
        search: Callable[[SearchRequest], Awaitable[Answered]],
        engine: Engine,
        instruments: Instruments,
        shadow_fraction: float = 0.0,
        on_search: Callable[[str, SearchRequest], None] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._instruments, self._shadow_fraction, self._on_search = instruments, shadow_fraction, on_search
        self.engine, self.since = engine, datetime.now(UTC)
        self.metrics = metrics or Metrics(instruments)
        self.metrics.serves(engine.facts, self.since)
        self.batches = Batches(search, engine.limits.max_answered_items)
        self.shadow = Shadow(search, shadow_fraction, self.metrics.shadow)
        self.drift = Drift(engine.cutoffs.calibrated_temperature, self.metrics.drift)
        self._feedback = Feedback(engine.limits, self.metrics.feedback)

    def after(self, search: Callable[[SearchRequest], Awaitable[Answered]], engine: Engine) -> "Traffic":
        """The traffic of another version in place of this one: counts go on, and what is learnt begins anew."""
        return Traffic(search, engine, self._instruments, self._shadow_fraction, self._on_search, self.metrics)

    async def search(self, request: SearchRequest) -> Answered:
        """The answer to a search; a caller that sends its results passes them through `counted`."""
        if self._on_search is not None:
            self._on_search(self.engine.facts["version"], request)
        return self.shadow.seen(request, await self.batches.search(request))

    def counted(self, answered: Answered) -> Iterator[QueryResult]:
        """The results of an answer, each counted as it passes."""
        for result in self.metrics.answered(answered):
            self.drift.seen(result.temperature)
            yield result

    async def feedback(self, request: FeedbackRequest) -> FeedbackResponse:
        """Which of the items that a client found relevant a search keeps."""
        results = list[QueryResult]()
        for part, named in self._feedback.searches(request):
            with named:
                found = await self.batches.search(part)
                results += await asyncio.to_thread(list, found.results)
        return self._feedback.judge(request, found.head, results)

    @property
    def facts(self) -> dict[str, Any]:
        """Return what `/v1/index` says of the traffic since the version answers."""
        return {
            "served_since": f"{self.since:%Y-%m-%dT%H:%M:%SZ}",
            "shadow": self.shadow.recall.to_dict("recall"),
            "feedback": self._feedback.judged.to_dict(),
            "drift": self.drift.found.to_dict(),
        }
