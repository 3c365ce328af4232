"""Searches that arrive at the same time are one search: its queries are encoded, travel and are scored together.

A request starts at once if no other like it is under way. The requests that arrive meanwhile wait for it to end, and go
on as one. A full batch does not wait: it begins beside the one under way, so that the router encodes while the shards
search. So nobody waits while the server is idle, and batches grow with the load. Requests are alike if they differ in
their queries alone. A batch is of use as long as any of its requests; one that nobody waits for any more is cancelled.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from rails_ray.errors import UnsupportedError
from rails_ray.schema.requests import SearchRequest
from rails_ray.schema.responses import QueryResult
from rails_ray.serving.deadlines import ends_at
from rails_ray.serving.engine import Answered
from rails_ray.serving.vector_queries import VectorQueries

MOST_QUERIES = 64  # of a batch of requests; more are searched no faster, and wait for each other
MOST_UNDER_WAY = 2  # batches of requests alike that are searched at once
TURNS = 2  # of the event loop: one reads from connections, one carries what came as far as here
ASSUMED_K = 1000  # of a request that names no k: the longest default
OF_ONE_REQUEST = (ValueError, UnsupportedError)  # errors that say nothing about the others of a batch


@dataclass(frozen=True)
class _Waiting:
    request: SearchRequest
    answer: asyncio.Future[Answered]
    since: float
    ends_at: float


class Batches:
    """
    Args:
        search: carries out one request.
        most_items: most queries times k of a batch; see `Limits.max_answered_items`.
    """

    def __init__(
        self,
        search: Callable[[SearchRequest], Awaitable[Answered]],
        most_items: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._search = search
        self._most_items = most_items
        self._clock = clock
        self._waiting = dict[str, deque[_Waiting]]()
        self._under_way = Counter[str]()
        self._tasks = set[asyncio.Task[None]]()

    async def search(self, request: SearchRequest) -> Answered:
        """The answer to a request, as if it had come alone. Raises what `search` raises."""
        if request.budget is not None or len(request.queries) >= self._most_queries(request):
            return await self._search(request)
        kind = request.model_dump_json(exclude={"queries"})
        if not self._under_way[kind] and not self._waiting.get(kind):
            return await self._first(kind, request)
        own = _Waiting(request, asyncio.get_running_loop().create_future(), self._clock(), ends_at.get())
        self._waiting.setdefault(kind, deque()).append(own)
        self._begin(kind)
        return await own.answer

    async def _first(self, kind: str, request: SearchRequest) -> Answered:
        """The answer to a request for which nobody waits yet: a batch of its own, with no task of its own."""
        self._under_way[kind] += 1
        self._waiting.setdefault(kind, deque())
        try:
            await _let_others_come()
            answered = await self._search(request)
        finally:
            self._under_way[kind] -= 1
            self._begin(kind)
        return replace(answered, stages={"queue": 0.0, **answered.stages})

    def _most_queries(self, request: SearchRequest) -> int:
        """How many queries may be answered together without any list becoming shorter."""
        return min(MOST_QUERIES, self._most_items // max(request.k or 0, ASSUMED_K))

    def _begin(self, kind: str) -> None:
        """Start a batch of those who wait, if there are any and it is their turn."""
        while self._may_begin(kind) and (batch := self._next(kind)):
            self._under_way[kind] += 1
            context = copy_context()
            context.run(ends_at.set, max(own.ends_at for own in batch))
            task = asyncio.create_task(self._answer(kind, batch), context=context)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            for own in batch:
                own.answer.add_done_callback(partial(_cancel_if_all_went, task, batch))
        if not self._under_way[kind]:
            del self._under_way[kind], self._waiting[kind]

    def _may_begin(self, kind: str) -> bool:
        """Return whether a batch is the first under way, or a full one for which there is a place."""
        if not self._under_way[kind] or self._under_way[kind] >= MOST_UNDER_WAY:
            return not self._under_way[kind]
        waiting = [own.request for own in islice(self._waiting[kind], MOST_QUERIES) if not own.answer.done()]
        return bool(waiting) and sum(len(own.queries) for own in waiting) >= self._most_queries(waiting[0])

    def _next(self, kind: str) -> list[_Waiting]:
        """The first who wait and have not gone, as many as may be answered together."""
        waiting, batch, num_queries = self._waiting[kind], list[_Waiting](), 0
        while waiting:
            num_queries += 0 if waiting[0].answer.done() else len(waiting[0].request.queries)
            if batch and num_queries > self._most_queries(waiting[0].request):
                break
            own = waiting.popleft()
            if not own.answer.done():
                batch.append(own)
        return batch

    async def _answer(self, kind: str, batch: list[_Waiting]) -> None:
        try:
            await _let_others_come()
            await self._together(batch)
        finally:
            self._under_way[kind] -= 1
            self._begin(kind)

    async def _together(self, batch: list[_Waiting]) -> None:
        [first, *others] = batch
        if not others:
            return await self._alone(first)
        began = self._clock()
        queries = VectorQueries.joined([own.request.queries for own in batch])
        try:
            found = await self._search(first.request.model_copy(update={"queries": queries}))
            listed = list(found.results) if found.is_small else await asyncio.to_thread(list, found.results)
            results = iter(listed)
        except OF_ONE_REQUEST:  # run each request alone, to find the one and its message
            await asyncio.gather(*map(self._alone, batch))
        except Exception as error:
            for own in batch:
                _fail(own.answer, error)
        else:
            for own in batch:
                its = list(islice(results, len(own.request.queries)))
                head = found.head.model_copy(update={"is_exact": all(map(_is_exact, its))})
                num_items = sum(len(result.items) for result in its)
                _tell(own, Answered(head, iter(its), len(its) + num_items, found.stages), began)

    async def _alone(self, own: _Waiting) -> None:
        began = self._clock()
        try:
            _tell(own, await self._search(own.request), began)
        except Exception as error:
            _fail(own.answer, error)


async def _let_others_come() -> None:
    """Let requests that have arrived be read, so that they wait together while a search occupies this loop."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _cancel_if_all_went(task: asyncio.Task[None], batch: Sequence[_Waiting], _: asyncio.Future[Answered]) -> None:
    """Nobody waits for a batch whose requests were all cancelled."""
    if all(own.answer.cancelled() for own in batch):
        task.cancel()


def _is_exact(result: QueryResult) -> bool:
    return result.certificate.is_exact and result.error is None


def _tell(own: _Waiting, answered: Answered, began: float) -> None:
    with suppress(asyncio.InvalidStateError):  # the client has gone
        own.answer.set_result(replace(answered, stages={"queue": began - own.since, **answered.stages}))


def _fail(answer: asyncio.Future[Answered], error: Exception) -> None:
    with suppress(asyncio.InvalidStateError):
        answer.set_exception(error)
