"""Asking a server: what is asked again, and what is told of a key. A transport stands for the network's faults."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from rails_ray import client
from rails_ray.errors import AccessError, UnavailableError

FOUND = {"results": []}
REAL = httpx.Client
DIED = httpx.Response(500, text="Internal Server Error")


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

        monkeypatch.setattr(
            httpx, "Client", lambda **options: REAL(**options | {"transport": httpx.MockTransport(handle)})
        )
        return requests

    return answer


@pytest.mark.parametrize("first", [DIED, httpx.ReadError("reset"), httpx.RemoteProtocolError("closed")])
def test_a_router_that_dies_under_a_request_is_asked_again_once(
    first: httpx.Response | Exception, answering: Callable[..., list[httpx.Request]]
) -> None:
    requests = answering(first, httpx.Response(200, json=FOUND))
    assert client.search("http://server", [{"text": "pizza"}], 3) == FOUND
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
