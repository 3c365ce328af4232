"""Asking a server: what is asked again, and what is told of a key. A transport stands for the network's faults."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from rails_ray.errors import AccessError, UnavailableError
from rails_ray.schema.requests import FeedbackRequest
from rails_ray.schema.responses import FeedbackResponse, SearchResponse
from rails_ray.serving import client
from support.responses import search_response

FOUND = search_response().model_dump()
REAL: dict[str, Any] = {"Client": httpx.Client, "AsyncClient": httpx.AsyncClient}
DIED = httpx.Response(500, text="Internal Server Error")


def _made(kind: Any, transport: httpx.MockTransport, **options: Any) -> Any:
    return kind(**options | {"transport": transport})


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[httpx.Request]]:
    """Makes every client meet these answers in turn, or exceptions; the requests that come."""

    def answer(*answers: httpx.Response | Exception) -> list[httpx.Request]:
        left, requests = list(answers), list[httpx.Request]()

        def handle(request: httpx.Request) -> httpx.Response:
            requests.append(request)
            found = left.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        for name, kind in REAL.items():
            made = partial(_made, kind, httpx.MockTransport(handle))
            monkeypatch.setattr(httpx, name, made)
        return requests

    return answer


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda own: own.search("red"), "queries"),
        (lambda own: own.search({"text": "red"}), "queries"),
        (lambda own: own.feedback({"text": "red"}, [["a"]]), "queries"),
        (lambda own: own.feedback(["red"], ["ab"]), r"relevant\[0\]"),
        (lambda own: own.explain("red", "ab"), "items"),
        (lambda own: own.embed("red"), "texts"),
        (lambda own: own.upsert({"id": "a"}), "items"),
        (lambda own: own.delete("ab"), "ids"),
    ],
)
def test_one_value_in_place_of_a_list_is_not_sent(
    ask: Callable[[client.Client], Any], name: str, answering: Callable[..., list[httpx.Request]]
) -> None:
    requests = answering()
    with client.Client("http://server") as own, pytest.raises(ValueError, match=f"{name} must be a list, got .* alone"):
        ask(own)
    assert not requests


@pytest.mark.parametrize("first", [DIED, httpx.ReadError("reset"), httpx.RemoteProtocolError("closed")])
def test_a_router_that_dies_under_a_request_is_asked_again_once(
    first: httpx.Response | Exception, answering: Callable[..., list[httpx.Request]]
) -> None:
    requests = answering(first, httpx.Response(200, json=FOUND))
    assert client.search("http://server", [{"text": "pizza"}], 3) == SearchResponse(**FOUND)
    assert [request.content for request in requests] == [b'{"queries":[{"text":"pizza"}],"k":3}'] * 2
    requests = answering(first, first, httpx.Response(200, json=FOUND))
    with pytest.raises(UnavailableError):
        client.search("http://server", [{"text": "pizza"}], 3)
    assert len(requests) == 2


@pytest.mark.parametrize(
    ("response", "kind", "message"),
    [
        (httpx.Response(422, json={"error": "k must be so"}), ValueError, "^k must be so$"),
        (httpx.Response(413, json={"error": "too large"}), ValueError, "^too large$"),
        (httpx.Response(401, json={"error": "a key"}), AccessError, "^a key: set RAILS_RAY_API_KEY$"),
        (httpx.Response(403, json={"error": "a key"}), AccessError, "^a key: set RAILS_RAY_API_KEY$"),
        (httpx.Response(503, json={"error": "less"}), UnavailableError, "^less$"),
        (httpx.Response(200, text="<html>"), UnavailableError, "must answer as a rails-ray server, got status 200 of"),
    ],
)
def test_a_refusal_is_the_servers_sentence_and_not_asked_again(
    response: httpx.Response, kind: type[Exception], message: str, answering: Callable[..., list[httpx.Request]]
) -> None:
    requests = answering(response)
    with pytest.raises(kind, match=message):
        client.search("http://server", [{"text": "pizza"}], 3)
    assert len(requests) == 1


def test_a_key_is_sent_without_the_newline_of_its_file(
    answering: Callable[..., list[httpx.Request]], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = answering(*[httpx.Response(200, json={})] * 3)
    client.index("http://server")
    monkeypatch.setenv("RAILS_RAY_API_KEY", "of-the-environment\n")
    client.index("http://server")
    client.index("http://server", key="given")
    keys: list[Any] = [request.headers.get("authorization") for request in requests]
    assert keys == [None, "Bearer of-the-environment", "Bearer given"]


@pytest.mark.parametrize("key", ["first\nsecond", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="an API key must be of printable ASCII characters") as told:
        client.index("http://127.0.0.1:1", key=key)
    assert key not in str(told.value)
    assert key[:5] not in str(told.value)


def busy() -> httpx.Response:
    return httpx.Response(503, json={"error": "busy"}, headers={"retry-after": "7"})


def what_may_pass() -> list[httpx.Response | Exception]:
    died, slower = httpx.Response(500, text="Internal Server Error"), httpx.Response(429, json={"error": "slower"})
    return [died, httpx.ConnectError("refused"), busy(), slower]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a client waits; it does not wait here."""
    waited = list[float]()

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr("asyncio.sleep", wait)
    return waited


def test_a_client_repeats_what_may_pass_and_waits_as_it_is_told(
    answering: Callable[..., list[httpx.Request]], pauses: list[float]
) -> None:
    requests = answering(*what_may_pass(), httpx.Response(200, json=FOUND))
    with client.Client("http://server", retries=4) as server:
        assert server.search([{"text": "pizza"}], 3) == SearchResponse(**FOUND)
    assert len(requests) == 5
    assert pauses == [0.0, 0.1, 0.2, 7.0, 0.8]


def test_an_asynchronous_client_does_the_same(
    answering: Callable[..., list[httpx.Request]], pauses: list[float]
) -> None:
    requests = answering(*what_may_pass(), httpx.Response(200, json=FOUND))

    async def ask() -> Any:
        async with client.AsyncClient("http://server", retries=4) as server:
            return await server.search([{"text": "pizza"}], 3)

    assert asyncio.run(ask()) == SearchResponse(**FOUND)
    assert len(requests) == 5
    assert pauses == [0.0, 0.1, 0.2, 7.0, 0.8]


def test_a_client_gives_up_with_the_last_reason(
    answering: Callable[..., list[httpx.Request]], pauses: list[float]
) -> None:
    for last, message in [
        (busy, "^busy$"),
        (partial(httpx.ConnectError, "no"), "a rails-ray server must answer at http"),
    ]:
        requests = answering(*[last() for _ in range(9)])
        with client.Client("http://server", retries=2) as server, pytest.raises(UnavailableError, match=message):
            server.index()
        assert len(requests) == 3


def test_a_refusal_is_not_repeated_by_a_client_either(answering: Callable[..., list[httpx.Request]]) -> None:
    requests = answering(httpx.Response(422, json={"error": "k must be so"}))
    with client.Client("http://server") as server, pytest.raises(ValueError, match=r"^k must be so$"):
        server.explain({"text": "pizza"}, ["1"])
    assert len(requests) == 1


def test_vectors_come_as_lists(answering: Callable[..., list[httpx.Request]]) -> None:
    answer = httpx.Response(200, json={"data": [{"embedding": [1.0, 2.0]}]})
    requests = answering(answer, answer)
    with client.Client("http://server") as server:
        assert server.embed(["pizza"]) == server.embed(["pizza"], "document") == [[1.0, 2.0]]
    assert requests[0].content == b'{"input":["pizza"]}'
    assert requests[1].content == b'{"input":["pizza"],"input_type":"document"}'


def test_feedback_names_the_search_and_what_was_relevant(answering: Callable[..., list[httpx.Request]]) -> None:
    requests = answering(
        *[
            httpx.Response(200, json=FeedbackResponse(version="v1", cutoff={}, kept=[[True]]).model_dump())
            for _ in range(2)
        ]
    )

    async def told() -> Any:
        async with client.AsyncClient("http://server") as server:
            return await server.feedback([{"text": "pizza"}], [("🍕",)], method="brute_force")

    with client.Client("http://server") as server:
        assert server.feedback([{"text": "pizza"}], [("🍕",)], method="brute_force") == asyncio.run(told())
    expected = {"search": {"queries": [{"text": "pizza"}], "method": "brute_force"}, "relevant": [["🍕"]]}
    assert [json.loads(request.content) for request in requests] == [expected] * 2
    FeedbackRequest.model_validate(expected)


@pytest.mark.parametrize("kind", [client.Client, client.AsyncClient])
def test_a_url_that_is_none(kind: Any) -> None:
    with pytest.raises(UnavailableError, match="a rails-ray server must answer at http://server:port, got"):
        kind("http://server:port")


def test_an_answer_is_read_by_attribute_and_by_item(answering: Callable[..., list[httpx.Request]]) -> None:
    later = FOUND | {"results": [FOUND["results"][0] | {"of_a_later_release": 3}]}
    answering(httpx.Response(200, json=later))
    found = client.search("http://server", [{"text": "pizza"}])
    assert found.results[0].items == found["results"][0]["items"] == [1]
    assert found["results"][0]["certificate"]["gap"] is None
    assert found["results"][0]["of_a_later_release"] == 3, "a client passes on what a newer server says"
    assert "version" in found
    assert "keys" not in found
    assert found.get("version") == "v"
    assert found.get("none", 1) == 1
    assert found.model_dump() == later
    assert found == later
    assert found["coverage"] == FOUND["coverage"]
    assert found != FOUND
    with pytest.raises(KeyError):
        found["none"]


def test_an_answer_that_lacks_a_field_is_not_of_this_release(answering: Callable[..., list[httpx.Request]]) -> None:
    answering(httpx.Response(200, json={"results": []}))
    with pytest.raises(UnavailableError, match=r"must answer as a rails-ray server of this release, got .* version"):
        client.search("http://server", [{"text": "pizza"}])
