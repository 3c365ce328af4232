"""The recall of live searches: what is compared, how often, and what the interval covers."""

import asyncio
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from rails_ray.errors import UnavailableError
from rails_ray.schema.requests import SearchRequest
from rails_ray.schema.responses import CertificateResult, Coverage, QueryResult, SearchResponse
from rails_ray.serving.deadlines import ends_at
from rails_ray.serving.engine import Answered
from rails_ray.serving.running_means import RunningMean
from rails_ray.serving.shadow import Shadow

EXACTLY = {"a": ["1", "2", "3", "4"], "b": ["5", "6"], "none": []}
FOUND = {"a": ["1", "2", "3", "9"], "b": ["6", "5"], "none": ["8"]}


def answered(lists: dict[str, list[str]], request: SearchRequest, num_searched: int = 9) -> Answered:
    certificate = CertificateResult(is_exact=False, gap=None, reason="why")
    facts: dict[str, Any] = {"num_kept": 1, "num_searched": 9, "num_scored": 9, "is_truncated": False}
    texts = [str(query.model_dump()["text"]) for query in request.queries]
    results = [
        QueryResult(items=lists[text], titles=None, scores=[], threshold=None, certificate=certificate, **facts)
        for text in texts
    ]
    coverage = Coverage(shards_answered=1, num_shards=1, items_searched=num_searched, num_items=9)
    head = SearchResponse(
        version="v", method=request.method or "gated", is_exact=False, cutoff={}, coverage=coverage, results=[]
    )
    return Answered(head, iter(results), 2 * len(results))


def request_of(*texts: str, **fields: Any) -> SearchRequest:
    queries = [{"text": text} for text in texts]
    return SearchRequest.model_validate({"queries": queries, "method": "gated", "num_candidates": 5, **fields})


class Exactly:
    """Searches exactly once it may; raises `error` instead, if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked = list[SearchRequest]()
        self.error = error
        self.num_searched = 9
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def search(self, request: SearchRequest) -> Answered:
        self.asked.append(request)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return answered(EXACTLY, request, self.num_searched)


async def compared(shadow: Shadow) -> None:
    assert shadow._comparing is not None
    await shadow._comparing


def test_the_recall_is_the_share_of_the_exact_list_that_was_answered() -> None:
    async def scenario() -> None:
        exactly, told = Exactly(), list[RunningMean]()
        shadow = Shadow(exactly.search, 1.0, told.append)
        request = request_of("a", "b", "none", k=4)
        passed = shadow.seen(request, answered(FOUND, request))
        assert [result.items for result in passed.results] == [FOUND[text] for text in ("a", "b", "none")]
        await compared(shadow)
        assert told == [RunningMean(3, 0.75 + 1 + 1)]
        (again,) = exactly.asked
        assert (again.method, again.num_candidates, again.k) == ("brute_force", None, 4)

    asyncio.run(scenario())


@pytest.mark.parametrize("fields", [{"method": "brute_force"}, {"method": "two_pass"}, {"budget": {"calls": 3}}])
def test_what_is_exact_already_or_reranked_is_not_compared(fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        exactly = Exactly()
        shadow = Shadow(exactly.search, 1.0)
        request = request_of("a", **fields)
        shadow.seen(request, answered(FOUND, request))
        assert shadow._comparing is None

    asyncio.run(scenario())


def test_a_share_is_drawn_and_one_comparison_is_under_way_at_most() -> None:
    async def scenario() -> None:
        exactly, draws = Exactly(), iter([0.3, 0.19, 0.1])
        exactly.may_answer.clear()
        shadow = Shadow(exactly.search, 0.2, draw=lambda: next(draws))
        request = request_of("a")
        for _ in range(5):
            shadow.seen(request, answered(FOUND, request))
            await asyncio.sleep(0)
        assert len(exactly.asked) == 1, "the first is not drawn, the third and later ones come while one is under way"
        exactly.may_answer.set()
        await compared(shadow)
        shadow.seen(request, answered(FOUND, request))
        await compared(shadow)
        assert shadow.recall.num_queries == 2

    asyncio.run(scenario())


def test_an_exact_search_that_fails_is_no_comparison_and_no_failure() -> None:
    async def scenario() -> None:
        shadow = Shadow(Exactly(UnavailableError("no shard")).search, 1.0)
        request = request_of("a")
        shadow.seen(request, answered(FOUND, request))
        await compared(shadow)
        assert shadow.recall.to_dict("recall") == {"num_queries": 0, "recall": None, "low": None, "high": None}

    asyncio.run(scenario())


def test_searches_of_a_part_of_the_corpus_are_not_compared() -> None:
    async def scenario() -> None:
        exactly = Exactly()
        shadow = Shadow(exactly.search, 1.0)
        request = request_of("a")
        shadow.seen(request, answered(FOUND, request, num_searched=8))
        assert shadow._comparing is None
        exactly.num_searched = 8
        shadow.seen(request, answered(FOUND, request))
        await compared(shadow)
        assert shadow.recall.num_queries == 0

    asyncio.run(scenario())


def test_a_comparison_goes_on_when_its_client_has_gone() -> None:
    async def scenario() -> None:
        ends = list[float]()
        exactly = Exactly()

        async def search(request: SearchRequest) -> Answered:
            ends.append(ends_at.get())
            return await exactly.search(request)

        shadow = Shadow(search, 1.0)
        ends_at.set(0.0)
        request = request_of("a")
        shadow.seen(request, answered(FOUND, request))
        await compared(shadow)
        assert ends == [inf]
        assert shadow.recall.num_queries == 1

    asyncio.run(scenario())


def test_a_default_search_is_compared_by_the_method_that_was_used() -> None:
    async def scenario() -> None:
        exactly = Exactly()
        shadow = Shadow(exactly.search, 1.0)
        request = request_of("a", method=None, num_candidates=None)
        answer = answered(FOUND, request)
        shadow.seen(request, replace(answer, head=answer.head.model_copy(update={"method": "two_pass"})))
        assert shadow._comparing is None
        shadow.seen(request, answered(FOUND, request))
        await compared(shadow)
        assert exactly.asked[0].method == "brute_force"

    asyncio.run(scenario())
