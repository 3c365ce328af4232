"""What an answer says of a query does not depend on the queries beside it, in a request or in a batch of the server's:
every method and index, batches of 1 to 64 queries, each with hidden items and a threshold of its own."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rails_ray.modules.similarities.states import take
from rails_ray.schema.requests import SearchRequest
from rails_ray.schema.responses import QueryResult
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.spec import SearchResult
from rails_ray.serving import local
from rails_ray.serving.batching import MOST_QUERIES, Batches
from rails_ray.serving.engine import Answered
from support.examples import publish_here
from support.indexed import NUM_ITEMS, TOLERANCE, Question, corpus, each, questions, search

NUM_QUERIES = 64


@each(few=1, many=2)
def test_a_query_is_answered_alone_as_in_company(kind: str, index: str, num: int) -> None:
    for of, method, asked in questions(kind, index, num, NUM_QUERIES):
        _, whole = search(of, method, asked)
        for size in (1, 7) if num == 1 else (1, 2, 7, 33):
            first = 13 % (NUM_QUERIES - size)
            lines = [*range(first, first + size)]
            _, found = search(of, method, asked.of_queries(lines), take(of.query, lines))
            assert_same(found, whole, lines)


def test_lists_grow_for_the_queries_that_need_it_alone() -> None:
    """Of lists of one item some hold `at_least` items at once, and others after they were doubled."""
    of = corpus("sharp mixture", "no index", NUM_QUERIES)
    asked = Question(9, torch.full((NUM_QUERIES,), 2.0), 6, [[]] * NUM_QUERIES, SearchParams(num_per_embedding=1), 1)
    _, whole = search(of, "per_embedding", asked)
    assert len(whole.num_scored.unique()) > 3
    for line in range(NUM_QUERIES):
        _, found = search(of, "per_embedding", asked.of_queries([line]), take(of.query, [line]))
        assert_same(found, whole, [line])


@pytest.mark.parametrize("method", ["average", "combined", "gated", "per_embedding"])
def test_lists_that_are_too_short_for_k_are_refused_whoever_asks_beside(method: str) -> None:
    """However few items its own exclusions leave a query."""
    of = corpus("sharp mixture", "no index", NUM_QUERIES)
    few = [[*range(NUM_ITEMS - 3)], *([[]] * (NUM_QUERIES - 1))]
    asked = Question(20, None, 0, few, SearchParams(num_candidates=5, num_per_embedding=2), 1)
    for lines in ([0], [0, 1], [1]):
        with pytest.raises(ValueError, match="must be at least"):
            search(of, method, asked.of_queries(lines), take(of.query, lines))


def test_a_request_is_answered_alone_as_in_a_batch_of_the_server(tmp_path: Path) -> None:
    """All that its JSON says. Each request excludes other items: one may be exact where its neighbour is not."""
    publish_here(tmp_path)
    version = local.open(str(tmp_path))
    texts = ["red", "blue hat", "tree", "gold ring", "car"]
    ids = [item for result in version.search(["red"], k=60).results for item in result.items]
    requests = []
    for method in ("brute_force", "two_pass", "per_embedding", "gated"):
        for number in range(MOST_QUERIES // 2):
            queries = [
                {"text": texts[(number + place) % 5], "exclude": ids[place : place + 7 * (number % 9)]}
                for place in range(1 + number % 2)
            ]
            how = {"method": method, "num_candidates": 10, "num_per_embedding": 5}
            requests.append(SearchRequest.model_validate({"queries": queries, "k": 5, **how}))

    async def carried_out(request: SearchRequest) -> Answered:
        sizes.append(len(request.queries))
        return version.carry_out(version.engine.search(request))

    async def together() -> list[Answered]:
        batches = Batches(carried_out, most_items=100_000)
        return await asyncio.gather(*map(batches.search, requests))

    sizes = list[int]()
    answers = asyncio.run(together())
    assert max(sizes) > MOST_QUERIES // 2
    kinds = set[bool]()
    for request, answer in zip(requests, answers, strict=True):
        alone = version.carry_out(version.engine.search(request))
        assert answer.head.is_exact == alone.head.is_exact
        for own, expected in zip(answer.results, alone.results, strict=True):
            assert without_scores(own) == without_scores(expected)
            assert own.scores == pytest.approx(expected.scores, abs=1e-6)
            gaps = own.certificate.gap, expected.certificate.gap
            assert gaps[0] == gaps[1] or gaps == pytest.approx(gaps[::-1], abs=1e-6)
            kinds.add(own.certificate.is_exact)
    assert kinds == {True, False}


def without_scores(result: QueryResult) -> dict[str, Any]:
    """What does not depend on the last bits of a matrix product."""
    told = result.model_dump(exclude={"scores", "threshold", "temperature", "certificate"})
    return {**told, "certificate": (result.certificate.is_exact, result.certificate.reason)}


def assert_same(found: SearchResult, whole: SearchResult, lines: list[int]) -> None:
    """But for the last bits of scores, which depend on the size of a matrix product."""
    for place, line in enumerate(lines):
        num = int(found.num_found()[place])
        assert num == whole.num_found()[line]
        same = found.item_rows[place, :num] == whole.item_rows[line, :num]
        scores, expected = found.scores[place, :num], whole.scores[line, :num]
        assert torch.allclose(scores, expected, atol=TOLERANCE)
        assert (same | ((scores[:, None] - scores).abs() <= TOLERANCE).sum(dim=1).gt(1)).all()  # or equal but for those
        bounds = float(found.bound[place]), float(whole.bound[line])
        assert bounds[0] == bounds[1] or math.isclose(*bounds, abs_tol=TOLERANCE)
        assert found.is_truncated[place] == whole.is_truncated[line]
        assert found.num_scored[place] == whole.num_scored[line]
        assert found.reasons[place] == whole.reasons[line]
