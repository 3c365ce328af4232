"""Requests that arrive together: who goes with whom, and that nobody notices."""

import asyncio
from typing import Any

import pytest

from rails_ray.errors import UnavailableError, UnsupportedError
from rails_ray.schema.requests import SearchRequest
from rails_ray.schema.responses import CertificateResult, Coverage, QueryResult, SearchResponse
from rails_ray.serving.batching import MOST_QUERIES, Batches
from rails_ray.serving.deadlines import ends_at
from rails_ray.serving.engine import Answered
from rails_ray.serving.vector_queries import VectorQueries, search_of

EXACT = CertificateResult(is_exact=True, gap=0.0, reason=None)
OPEN = CertificateResult(is_exact=False, gap=0.5, reason=None)


def asked(*texts: str, **fields: Any) -> SearchRequest:
    return SearchRequest.model_validate({"queries": [{"text": text} for text in texts], **fields})


def result(text: str) -> QueryResult:
    certificate = OPEN if text.startswith("open") else EXACT
    facts = {"num_kept": 1, "num_searched": 9, "num_scored": 9, "is_truncated": False}
    return QueryResult(items=[text], titles=None, scores=[0.5], threshold=None, certificate=certificate, **facts)


class Server:
    """Answers each query by its text once it may; `refused` is raised if a query has this text."""

    def __init__(self, refused: Exception | None = None) -> None:
        self.sizes = list[int]()
        self.may_answer = asyncio.Event()
        self.refused = refused

    async def search(self, request: SearchRequest) -> Answered:
        texts = [str(query.model_dump()["text"]) for query in request.queries]
        self.sizes.append(len(texts))
        await self.may_answer.wait()
        if self.refused is not None and "refused" in texts:
            raise self.refused
        results = [result(text) for text in texts]
        coverage = Coverage(shards_answered=1, num_shards=1, items_searched=9, num_items=9)
        head = SearchResponse(
            version="v1",
            method=request.method or "brute_force",
            is_exact=all(one.certificate.is_exact for one in results),
            cutoff={},
            coverage=coverage,
            results=[],
        )
        return Answered(head, iter(results), 2 * len(results), {"shards": 0.5})


def texts_of(answer: Any) -> list[Any]:
    return [one.items[0] for one in answer.results]


def served(
    *requests: SearchRequest, refused: Exception | None = None, most_items: int = 100_000
) -> tuple[Server, list[Any]]:
    """What each of these has for an answer, or the exception instead, if all come at once."""

    async def run() -> tuple[Server, list[Any]]:
        server = Server(refused)
        batches = Batches(server.search, most_items)
        tasks = [asyncio.create_task(batches.search(request)) for request in requests]
        await asyncio.sleep(0.01)
        await turns()  # where the machine stood still for that long
        server.may_answer.set()
        return server, await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run())


def test_the_first_starts_at_once_and_the_others_go_on_together() -> None:
    server, answers = served(asked("a"), asked("b", "c"), asked("d"))
    assert server.sizes == [1, 3]
    assert [texts_of(answer) for answer in answers] == [["a"], ["b", "c"], ["d"]]


def test_vectors_of_several_requests_are_one_array() -> None:
    seen = list[Any]()

    class OfVectors(Server):
        async def search(self, request: SearchRequest) -> Answered:
            seen.append(request.queries)
            texts = [{"text": str(number)} for number in range(len(request.queries))]
            return await super().search(SearchRequest.model_validate({"queries": texts}))

    def by_vectors(*numbers: float) -> SearchRequest:
        return search_of({"queries": [{"embedding": [number, 1.0]} for number in numbers]})

    async def run() -> list[Answered]:
        server = OfVectors()
        batches = Batches(server.search, 100_000)
        tasks = [asyncio.create_task(batches.search(by_vectors(*own))) for own in ([1.0], [2.0], [3.0, 4.0])]
        await turns()
        server.may_answer.set()
        return await asyncio.gather(*tasks)

    answers = asyncio.run(run())
    assert [len(list(answer.results)) for answer in answers] == [1, 1, 2]
    first, together = seen
    assert isinstance(first, VectorQueries)
    assert isinstance(together, VectorQueries)
    assert together.array.tolist() == [[2.0, 1.0], [3.0, 1.0], [4.0, 1.0]]


def test_each_answer_is_exact_by_its_own_lists() -> None:
    _, answers = served(asked("a"), asked("b", "open c"), asked("d"))
    assert [answer.head.is_exact for answer in answers] == [True, False, True]


def test_who_waits_is_told_how_long() -> None:
    _, answers = served(asked("a"), asked("b"))
    assert answers[0].stages["queue"] < answers[1].stages["queue"]
    assert answers[1].stages["queue"] >= 0.01
    assert answers[1].stages["shards"] == 0.5


@pytest.mark.parametrize("fields", [{"k": 3}, {"method": "average"}, {"cutoff": {"score": 0.5}}, {"min_coverage": 0.5}])
def test_requests_that_differ_are_apart(fields: dict[str, Any]) -> None:
    server, answers = served(asked("a"), asked("b"), asked("c", **fields), asked("d", **fields))
    assert server.sizes == [1, 1, 1, 1]
    assert [texts_of(answer) for answer in answers] == [["a"], ["b"], ["c"], ["d"]]


def test_a_batch_has_a_bound_and_begins_beside_another_once_it_is_full() -> None:
    async def run() -> None:
        server = Server()
        batches = Batches(server.search, 100_000)
        tasks = [asyncio.create_task(batches.search(asked("first")))]
        for num_more, sizes in ((6, [1]), (1, [1, 60]), (10, [1, 60])):  # two under way at most
            tasks += [asyncio.create_task(batches.search(asked(*"abcdefghij"))) for _ in range(num_more)]
            await turns()
            assert server.sizes == sizes
        server.may_answer.set()
        answers = await asyncio.gather(*tasks)
        assert server.sizes == [1, 60, 60, 50]
        assert all(texts_of(answer) == list("abcdefghij") for answer in answers[1:])

    assert MOST_QUERIES == 64
    asyncio.run(run())


def test_lists_do_not_become_shorter_in_company() -> None:
    server, _ = served(*(asked("a", "b") for _ in range(4)), most_items=4000)
    assert server.sizes == [2, 4, 2]
    server, _ = served(*(asked("a", k=50_000) for _ in range(3)))
    assert server.sizes == [1, 2]
    server, _ = served(*(asked("a", k=60_000) for _ in range(3)))
    assert server.sizes == [1, 1, 1]


def test_a_request_with_a_budget_goes_alone() -> None:
    server, _ = served(*(asked("a", cutoff={"top_k": 3}, budget={"calls": 9}) for _ in range(3)))
    assert server.sizes == [1, 1, 1]


@pytest.mark.parametrize("error", [ValueError("queries[0] must be better"), UnsupportedError("has no such thing")])
def test_a_request_that_is_refused_is_refused_alone(error: Exception) -> None:
    server, answers = served(asked("a"), asked("b"), asked("refused"), asked("d"), refused=error)
    assert server.sizes == [1, 3, 1, 1, 1]
    assert answers[2] is error
    assert [texts_of(answers[number]) for number in (0, 1, 3)] == [["a"], ["b"], ["d"]]


def test_shards_that_do_not_answer_are_told_to_all() -> None:
    error = UnavailableError("too few shards")
    server, answers = served(asked("a"), asked("b"), asked("refused"), refused=error)
    assert server.sizes == [1, 2]
    assert texts_of(answers[0]) == ["a"]
    assert answers[1:] == [error, error]


def test_results_that_cannot_be_made_are_told_to_all() -> None:
    class Broken(Server):
        async def search(self, request: SearchRequest) -> Answered:
            found = await super().search(request)
            broken = (result("a") if len(request.queries) == 1 else int("no") for _ in request.queries)
            return Answered(found.head, broken, found.num_parts)

    async def run() -> list[Any]:
        server = Broken()
        server.may_answer.set()
        batches = Batches(server.search, 100_000)
        async with asyncio.timeout(5):
            return await asyncio.gather(*(batches.search(asked("a")) for _ in range(3)))

    assert [texts_of(answer) for answer in asyncio.run(run())] == [["a"]] * 3  # each alone, as a batch is refused


def test_a_batch_is_of_use_as_long_as_any_of_its_requests() -> None:
    async def run() -> None:
        server, ends = Server(), list[float]()

        async def search(request: SearchRequest) -> Answered:
            ends.append(ends_at.get())
            return await server.search(request)

        batches = Batches(search, 100_000)

        async def ask(text: str, end: float) -> None:
            ends_at.set(end)
            await batches.search(asked(text))

        tasks = [asyncio.create_task(ask(text, end)) for text, end in (("a", 7.0), ("b", 5.0), ("c", 9.0), ("d", 8.0))]
        await turns()
        server.may_answer.set()
        await asyncio.gather(*tasks)
        assert ends == [7.0, 9.0]

    asyncio.run(run())


def test_whoever_has_gone_is_not_searched_for_and_nothing_is_left() -> None:
    async def run() -> None:
        server = Server()
        batches = Batches(server.search, 100_000)
        first, gone, last = [asyncio.create_task(batches.search(asked(text))) for text in "abc"]
        await turns()
        gone.cancel()
        await turns()
        server.may_answer.set()
        assert [texts_of(await first), texts_of(await last)] == [["a"], ["c"]]
        assert server.sizes == [1, 1]
        await turns()
        assert not batches._waiting
        assert not batches._under_way
        assert not batches._tasks

    asyncio.run(run())


def test_who_goes_while_a_batch_is_under_way_harms_nobody() -> None:
    async def run() -> None:
        server = Server()
        batches = Batches(server.search, 100_000)
        first = asyncio.create_task(batches.search(asked("a")))
        await turns()
        first.cancel()
        second = asyncio.create_task(batches.search(asked("b")))
        await turns()
        server.may_answer.set()
        assert texts_of(await second) == ["b"]

    asyncio.run(run())


async def turns() -> None:
    """Let the others do what they can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_search_is_cancelled_once_all_who_waited_for_it_have_gone() -> None:
    async def scenario() -> None:
        server = Server()
        batches = Batches(server.search, 100_000)
        alone = asyncio.create_task(batches.search(asked("alone")))
        await turns()
        together = [asyncio.create_task(batches.search(asked(text))) for text in ("one", "other")]
        await asyncio.sleep(0)
        alone.cancel()
        await turns()
        assert server.sizes == [1, 2], "the others need not wait for the first"
        together[0].cancel()
        await turns()
        server.may_answer.set()
        assert texts_of(await together[1]) == ["other"]

        server.may_answer.clear()
        alone = asyncio.create_task(batches.search(asked("alone")))
        await turns()
        gone = [asyncio.create_task(batches.search(asked(text))) for text in ("one", "other")]
        await asyncio.sleep(0)
        alone.cancel()
        await turns()
        (task,) = batches._tasks
        for own in gone:
            own.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not batches._waiting

    asyncio.run(scenario())
