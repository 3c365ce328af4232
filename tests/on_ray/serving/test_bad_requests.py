"""Requests that cannot be answered: the status, and the sentence that says what must hold."""

from typing import Any

import httpx
import pytest

from served_version import Served

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "queries must be given, got none"),
        ({"queries": []}, "queries must have a length of at least 1, got []"),
        ({"queries": [{"text": "a"}] * 1025}, "queries must have a length of at most 1024, got 1025"),
        ({"queries": [{"text": "a"}], "k": 0}, "k must be greater than or equal to 1, got 0"),
        ({"queries": [{"text": "a"}], "k": 61}, "k must be at most the 60 indexed items, got 61"),
        ({"queries": [{"text": "a"}], "k": "ten"}, "k must be an integer, got 'ten'"),
        ({"queries": [{"text": "a"}], "speed": 9}, "speed must not be given, it is no field of this request, got 9"),
        ({"queries": [{"texts": "a"}]}, "queries[0].texts must not be given, it is no field of this request, got 'a'"),
        ({"queries": [{"text": ""}]}, "queries[0].text must have a length of at least 1, got ''"),
        (
            {"queries": [{}]},
            "queries[0] must have exactly one of text, embedding, features, history, user_id, got none",
        ),
        (
            {"queries": [{"text": "a", "embedding": [1.0]}]},
            "queries[0] must have exactly one of text, embedding, features, history, user_id, got text and embedding",
        ),
        ({"queries": [{"embedding": [1.0]}]}, "queries[0].embedding must have 8 numbers, got 1"),
        (
            {"queries": [{"text": "a"}, {"history": ["x"]}]},
            "queries[1] must be a text or an embedding for this index, got a history",
        ),
        ({"queries": [{"text": "🍕!"}]}, "queries[0].text must hold a letter or a digit, got '🍕!'"),
        (
            {"queries": [{"text": "a"}, {"embedding": [1e39, *[0.0] * 7]}]},
            "queries[1].embedding must hold numbers up to 1e+06, got 1e+39",
        ),
        (
            {"queries": [{"text": "a"}], "method": "magic"},
            "method must be 'brute_force', 'two_pass', 'per_embedding', 'average', 'combined' or 'inverted', "
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
        (
            {"queries": [{"text": "a", "exclude": [f"item-{row}" for row in range(60)]}], "cutoff": {"top_k": 1}},
            "k must be at most the 0 items searched and not excluded, got 1",
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
            "cutoff.score must be less than or equal to 1, got 1.5",
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
            {"queries": [{"text": "a"}], "cutoff": {"top_k": 61}},
            "k must be at most the 60 indexed items, got 61",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"score": 0.5, "background": "sphere"}},
            "cutoff must have a background with mass alone, got 'sphere' without mass",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"mass": 0.5, "background": "flat"}},
            "cutoff.background must be 'uniform', 'sphere' or 'fitted', got 'flat'",
        ),
        (
            {"queries": [{"text": "a", "exclude": ["item-0"]}], "k": 60, "cutoff": {"top_k": 60}},
            "k must be at most the 59 items searched and not excluded, got 60",
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
        (b'{"queries": [', "the body must be JSON, got something else: Expecting value"),
        (b"[]", "the body must be a JSON object, got []"),
        (b"", "the body must be given, got none"),
    ],
)
def test_a_body_that_is_no_request(served_version: Served, body: bytes, message: str) -> None:
    response = httpx.post(f"{served_version.url}/v1/search", content=body)
    assert (response.status_code, response.json()) == (422, {"error": message})


def test_unknown_paths_and_methods(served_version: Served) -> None:
    response = httpx.get(f"{served_version.url}/v2/search")
    expected = "the path must be one of /v1/explain, /v1/health, /v1/index, /v1/search, got /v2/search"
    assert (response.status_code, response.json()) == (404, {"error": expected})
    assert httpx.get(f"{served_version.url}/v1/search").status_code == 405
