"""Answers as JSON: the same bytes in one piece and in many."""

import asyncio
import json
import threading

import pytest
from fastapi.responses import StreamingResponse

from rails_ray.schema.responses import BudgetResult, CertificateResult, Coverage, QueryResult, SearchResponse
from rails_ray.serving.http import streaming
from rails_ray.serving.http.streaming import in_large_pieces, pieces, response_of


def result(number: int) -> QueryResult:
    return QueryResult(
        items=[f"item-{number}", 7],
        titles=None,
        scores=[0.5, 0.25],
        threshold=None,
        num_kept=2,
        num_searched=9,
        num_scored=9,
        certificate=CertificateResult(is_exact=True, gap=0.0, reason=None),
        is_truncated=False,
    )


HEAD = SearchResponse(
    version="v1",
    method="brute_force",
    is_exact=True,
    cutoff={"top_k": 2},
    coverage=Coverage(shards_answered=1, num_shards=1, items_searched=9, num_items=9),
    results=[],
)


@pytest.mark.parametrize("num_results", [0, 1, 3])
def test_the_pieces_are_the_answer(num_results: int) -> None:
    results = [result(number) for number in range(num_results)]
    whole = HEAD.model_copy(update={"results": results})
    assert b"".join(pieces(HEAD, iter(results))) == whole.model_dump_json().encode()


def test_any_value_is_written_as_its_model_writes_it() -> None:
    odd = result(0).model_copy(
        update={
            "items": ["", 'a"\\\n\u2028\x00é🍕', -(2**63), 2**64 - 1],
            "scores": [float("nan"), float("-inf"), 1e-320, -0.0, 1e16, 0.1 + 0.2],
            "fields": [{"tags": ["a", None, True], "price": float("inf")}, {}],
            "budget": BudgetResult(calls_used=3, is_reranked=False, reason="late"),
        }
    )
    written = b"".join(pieces(HEAD, iter([odd])))
    assert json.loads(written)["results"] == [json.loads(odd.model_dump_json())]


def test_pieces_are_large_and_made_when_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PIECE_BYTES", 10)
    made = list[int]()

    def small() -> "streaming.Iterator[bytes]":
        for number in range(7):
            made.append(number)
            yield b"1234"

    large = in_large_pieces(small())
    assert next(large) == b"1234" * 3
    assert made == [0, 1, 2]
    assert list(large) == [b"1234" * 3, b"1234"]


def test_a_small_answer_is_one_piece_and_a_large_one_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body_of(count: int) -> tuple[bool, bytes]:
        response = await response_of(
            pieces(HEAD, iter([result(number) for number in range(count)])), is_small=count < 5
        )
        if not isinstance(response, StreamingResponse):
            return False, bytes(response.body)
        return True, b"".join([bytes(piece) async for piece in response.body_iterator])

    monkeypatch.setattr(streaming, "PIECE_BYTES", 2000)
    num_given_back = list[int]()
    monkeypatch.setattr(streaming, "give_back_soon", lambda: num_given_back.append(1))
    for count, is_stream in ((2, False), (100, True)):
        streamed, body = asyncio.run(body_of(count))
        assert streamed == is_stream == bool(num_given_back)
        assert [one["items"][0] for one in json.loads(body)["results"]] == [f"item-{n}" for n in range(count)]


@pytest.mark.parametrize("is_small", [False, True])
def test_a_small_answer_is_written_at_once_and_others_beside_the_event_loop(is_small: bool) -> None:
    async def written_in() -> set[int]:
        threads = set[int]()

        def small() -> "streaming.Iterator[bytes]":
            threads.add(threading.get_ident())
            yield b"{}"

        await response_of(small(), is_small)
        return threads

    assert (asyncio.run(written_in()) == {threading.get_ident()}) == is_small
