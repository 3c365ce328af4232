"""Requests that cannot be answered: the status, and the sentence that says what must hold."""

import socket
from contextlib import suppress
from typing import Any

import httpx
import pytest

from support.served_version import Served

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "queries must be given, got none"),
        ({"queries": []}, "queries must have a length of at least 1, got []"),
        ({"queries": [{"text": "a"}] * 1025}, "queries must have a length of at most 1024, got 1025"),
        ({"queries": [{"text": "a"}], "k": 0}, "k must be greater than or equal to 1, got 0"),
        ({"queries": [{"text": "a"}], "k": "ten"}, "k must be an integer, got 'ten'"),
        (
            {"queries": [{"text": "a"}], "speed": 9},
            "speed must not be given, as there is no such field, got 9",
        ),
        (
            {"queries": [{"texts": "a"}]},
            "queries[0].texts must not be given, as there is no such field, got 'a'",
        ),
        ({"queries": [{"text": ""}]}, "queries[0].text must have a length of at least 1, got ''"),
        (
            {"queries": [{}]},
            "queries[0] must have exactly one of text, embedding, embeddings, features, history, user_id, got none",
        ),
        (
            {"queries": [{"text": "a", "embedding": [1.0]}]},
            "queries[0] must have exactly one of text, embedding, embeddings, features, history, user_id, "
            "got text and embedding",
        ),
        ({"queries": [{"embedding": [1.0]}]}, "queries[0].embedding must have 8 numbers, got 1"),
        *(
            (
                {"queries": [{"text": "a"}, query]},
                f"queries[1] must be given by text or embedding for this index, got {next(iter(query))}",
            )
            for query in ({"history": ["x"]}, {"user_id": 3}, {"features": {}}, {"features": {"1": 1.0}, "text": None})
        ),
        ({"queries": [{"text": "🍕!"}]}, "queries[0].text must hold a letter or a digit, got '🍕!'"),
        (
            {"queries": [{"text": "a"}, {"embedding": [1e39, *[0.0] * 7]}]},
            "queries[1].embedding must hold numbers up to 1e+06, got 1e+39",
        ),
        (
            {"queries": [{"text": "a"}], "method": "magic"},
            "method must be 'brute_force', 'two_pass', 'per_embedding', 'average', 'combined', 'gated', 'ann', "
            "'surrogate', 'lookup', 'ivf_lookup' or 'inverted', "
            "got 'magic'",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"top_k": 10}, "method": "average", "num_candidates": 9},
            "num_candidates must be at least 10, the k of the search, got 9",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"top_k": 10}, "method": "per_embedding", "num_per_embedding": 2},
            "num_per_embedding must be at least 3 for k 10, with 4 pairs of components and 0 items by average, got 2",
        ),
        (
            {"queries": [{"text": "a"}], "method": "combined", "num_per_embedding": 0},
            "num_per_embedding must be greater than or equal to 1, got 0",
        ),
        ({"queries": [{"text": "a"}], "cutoff": {"mass": 1}}, "cutoff.mass must be less than 1, got 1"),
        (
            {"queries": [{"text": "a"}], "cutoff": {"mass": 0.5, "score": 0}},
            "cutoff must have exactly one of mass, coverage, nucleus, probability, score, top_k, got mass and score",
        ),
        ({"queries": [{"text": "a"}], "cutoff": {"mass": 0}}, "cutoff.mass must be greater than 0, got 0"),
        ({"queries": [{"text": "a"}], "cutoff": {"coverage": 1}}, "cutoff.coverage must be less than 1, got 1"),
        ({"queries": [{"text": "a"}], "cutoff": {"nucleus": 2}}, "cutoff.nucleus must be less than 1, got 2"),
        (
            {"queries": [{"text": "a"}], "cutoff": {"score": 1.5}},
            "cutoff.score must be in [-1, 1], as scores of this model are, got 1.5",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"score": 0.5, "min_items": -1}},
            "cutoff.min_items must be greater than or equal to 0, got -1",
        ),
        (
            {"queries": [{"text": "a"}], "k": 5, "cutoff": {"score": 0.5, "min_items": 6}},
            "min_items must be at most the 5 items of a list, got 6",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"score": 0.5, "min_items": 6, "max_items": 5}},
            "cutoff must have min_items of at most the 5 of max_items, got 6",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"score": 0.5, "background": "sphere"}},
            "cutoff must have a background with mass alone, got 'sphere' without mass",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"mass": 0.5, "background": "flat"}},
            "cutoff.background must be 'uniform', 'sphere', 'fitted' or 'held_out', got 'flat'",
        ),
    ],
)
def test_a_bad_request_is_422_and_a_sentence(served_version: Served, body: dict[str, Any], message: str) -> None:
    response = served_version.search(**body)
    assert (response.status_code, response.json()) == (422, {"error": message})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"queries": [{"embedding": [NaN]}]}', "queries[0].embedding[0] must be a finite number, got nan"),
        (b'{"queries": [{"embedding": [1e999]}]}', "queries[0].embedding[0] must be a finite number, got inf"),
        (b"", "the body must be given, got none"),
        (
            b'{"queries": [{"text": "\\ud800"}]}',
            "the body must hold whole characters, got half of a surrogate pair, '\\ud800'",
        ),
        (b"[" * 100_000, "the body must nest a few levels deep, as a request does, got hundreds"),
        (b"9" * 5000, "the body must hold integers of at most 4300 digits, got a longer one"),
    ],
)
def test_a_body_that_is_no_request(served_version: Served, body: bytes, message: str) -> None:
    response = httpx.post(f"{served_version.url}/v1/search", content=body)
    assert (response.status_code, response.json()) == (422, {"error": message})


def test_unknown_paths_and_methods(served_version: Served) -> None:
    response = httpx.get(f"{served_version.url}/v2/search")
    assert response.status_code == 404
    told = response.json()["error"]
    assert told.startswith("the path must be one of /v1/embeddings, /v1/explain, /v1/feedback, /v1/health, ")
    assert told.endswith("/v2/models/{name}/ready, got '/v2/search'")
    response = httpx.get(f"{served_version.url}/v1/search")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/v1/health", "/v1/index", "/v1/nothing", "/openapi.json"])
def test_head_is_get_without_the_body(served_version: Served, path: str) -> None:
    got, head = (httpx.request(method, f"{served_version.url}{path}") for method in ("GET", "HEAD"))
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    assert head.headers["content-length"] == str(len(got.content))


def test_what_curl_sends_by_itself(served_version: Served) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = b'{"queries": [{"text": "red"}], "k": 3, "cutoff": {"top_k": 3}}'
    response = httpx.post(f"{served_version.url}/v1/search", content=body, headers=form)
    assert [result["items"] for result in response.json()["results"]] == served_version.offline(["red"], 3)


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /v1/health HTTP/1.0\r\n",
        b"get /v1/health HTTP/1.1\r\n",
        b"PROPFIND /v1/search HTTP/1.1\r\n",
        b"GET /v1/%00%ff%0a HTTP/1.1\r\n",
        b"GET //v1/health/ HTTP/1.1\r\n",
        b"GET /" + b"x" * 60_000 + b" HTTP/1.1\r\n",
        b"GET /\xff HTTP/1.1\r\n",
        b"GET /v1/health HTTP/1.1\r\nx: " + b"y" * 2**20 + b"\r\n",
        b"POST /v1/search HTTP/1.1\r\ncontent-length: -1\r\n",
        b"POST /v1/search HTTP/1.1\r\ncontent-length: 2\r\ncontent-encoding: gzip\r\n",
    ],
    ids=lambda line: repr(line[:30]),
)
def test_odd_requests_are_answered_in_few_words(served_version: Served, request_line: bytes) -> None:
    address = httpx.URL(served_version.url)
    with socket.create_connection((address.host, address.port), timeout=20) as connection:
        # The server may answer, and close, before it has read all of a long header.
        with suppress(ConnectionError):
            connection.sendall(request_line + b"host: [\r\nconnection: close\r\n\r\n{}")
        answer = b""
        with suppress(ConnectionError):
            while piece := connection.recv(2**16):
                answer += piece
    status = int(answer.split()[1])
    assert status in (200, 400, 404, 405, 415, 422, 431)
    assert len(answer) < 2000


def test_the_description_names_every_status(served_version: Served) -> None:
    paths = httpx.get(f"{served_version.url}/openapi.json").json()["paths"]
    told = {path: {int(status) for status in next(iter(ways.values()))["responses"]} for path, ways in paths.items()}
    of_all = {200, 401, 403, 408, 413}  # what `access` refuses
    assert told["/v1/search"] >= of_all | {409, 422, 503}
    assert told["/v1/explain"] >= of_all | {422, 503}
    assert told["/v1/health"] >= of_all | {503}
    assert told["/v1/index"] >= of_all
