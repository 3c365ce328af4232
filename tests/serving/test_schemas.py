"""The requests: what they take, what they say of what they do not, and JSON Schema that says the same."""

from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, ValidationError

from rails_ray.schema.fields import shortened
from rails_ray.schema.requests import CutoffInput, ExplainRequest, SearchRequest
from rails_ray.serving.validation_messages import sentence


def told(body: dict[str, Any], request: type[BaseModel] = SearchRequest) -> str:
    with pytest.raises(ValidationError) as refused:
        request.model_validate(body)
    return sentence(dict(refused.value.errors()[0]))


def query(**fields: Any) -> dict[str, Any]:
    return {"queries": [{"text": "red"}, fields]}


def asking(**fields: Any) -> dict[str, Any]:
    return {"queries": [{"text": "red"}], **fields}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (query(text="a", exclude=[1.5]), "queries[1].exclude[0] must be a string or an integer, got 1.5"),
        (query(text="a", exclude=["b", None]), "queries[1].exclude[1] must be a string or an integer, got null"),
        (query(history=["b", True]), "queries[1].history[1] must be a string or an integer, got true"),
        (query(history=[[[[[[1]]]]]]), "queries[1].history[0] must be a string or an integer, got [[[[...]]]]"),
        (query(user_id=1.0), "queries[1].user_id must be a string or an integer, got 1.0"),
        (query(user_id={}), "queries[1].user_id must be a string or an integer, got {}"),
        (query(features={"1": "x"}), "queries[1].features['1'] must be a number, got 'x'"),
        (query(features={"1": float("inf")}), "queries[1].features['1'] must be a finite number, got inf"),
        (query(embedding=[0.5, "1"]), "queries[1].embedding[1] must be a number, got '1'"),
        (query(embedding=[True]), "queries[1].embedding[0] must be a number, got true"),
        (query(text=3), "queries[1].text must be a string, got 3"),
        (query(text="a", exclude_seen="no"), "queries[1].exclude_seen must be true or false, got 'no'"),
        (query(text="a", exclude_seen=0), "queries[1].exclude_seen must be true or false, got 0"),
        (query(text="a" * 10_001), "queries[1].text must have a length of at most 10000, got 10001"),
        (asking(k=True), "k must be an integer, got true"),
        (asking(k="3"), "k must be an integer, got '3'"),
        (asking(k=3.0), "k must be an integer, got 3.0"),
        (asking(k=2**63), "k must be less than or equal to 2147483647, got 9223372036854775808"),
        (asking(num_probes="1"), "num_probes must be an integer, got '1'"),
        (asking(min_coverage="1"), "min_coverage must be a number, got '1'"),
        (asking(min_coverage=True), "min_coverage must be a number, got true"),
        (asking(min_coverage=float("nan")), "min_coverage must be a finite number, got nan"),
        (asking(cutoff={"mass": "0.5"}), "cutoff.mass must be a number, got '0.5'"),
        (asking(cutoff={"score": True}), "cutoff.score must be a number, got true"),
        (asking(cutoff={"score": float("nan")}), "cutoff.score must be a finite number, got nan"),
        (asking(cutoff={"top_k": 5.0}), "cutoff.top_k must be an integer, got 5.0"),
        (asking(cutoff=[]), "cutoff must be a JSON object, got []"),
        (
            asking(cutoff={"score": 0, "a b": 1}),
            "cutoff['a b'] must not be given, as there is no such field, got 1",
        ),
        (
            query(**{f"field{number}": 1 for number in range(12)}),
            "queries[1] must have no more than its 11 fields, got 12",
        ),
        (query(text="red", timestamps=[1]), "queries[1] must have history beside timestamps, got none"),
        ({f"field{number}": 1 for number in range(20)}, "the body must have no more than its 19 fields, got 20"),
        ({"queries": None}, "queries must be a list, got null"),
        ({"queries": [None]}, "queries[0] must be a JSON object, got null"),
    ],
)
def test_places_are_what_the_client_wrote_and_words_are_true(body: dict[str, Any], message: str) -> None:
    assert told(body) == message


def test_a_number_beyond_floats_is_told() -> None:
    message = told(query(embedding=[10**400]))
    assert message.startswith("queries[1].embedding[0] must be a finite number, got 1000000")
    assert len(message) < 150


def test_an_integer_is_a_number() -> None:
    request = SearchRequest.model_validate(query(embedding=[1, -2]) | {"min_coverage": 1, "cutoff": {"score": 0}})
    assert request.queries[1].embedding == [1.0, -2.0]
    assert (request.min_coverage, request.cutoff) == (1.0, CutoffInput(score=0.0))


def test_keys_of_features_are_integers_in_digits() -> None:
    request = SearchRequest.model_validate(query(features={"0": 1, "17": -0.5, "2147483647": 2}))
    assert request.queries[1].features == {0: 1.0, 17: -0.5, 2147483647: 2.0}


@pytest.mark.parametrize(
    "key", [" 1", "1 ", "1\n", "1.0", "1e3", "+1", "-1", "-0", "1_0", "01", "00", "١", "", "x", "2147483648", "9" * 400]
)
def test_other_keys_of_features_are_refused(key: str) -> None:
    expected = "queries[1].features must have integers from 0 to 2147483647 in decimal digits as keys"
    assert told(query(features={"1": 1.0, key: 2.0})) == f"{expected}, got {shortened(key)}"


@pytest.mark.parametrize(
    ("body", "request_class"),
    [
        ({"queries": ["x"] * 100_000}, SearchRequest),
        (query(text="a", exclude=[1.5] * 100_000), SearchRequest),
        (query(features={str(number): "x" for number in range(100_000)}), SearchRequest),
        ({"query": {"text": "a"}, "items": [1.5] * 1000}, ExplainRequest),
        (query(**{f"field{number}": 1 for number in range(100_000)}), SearchRequest),
        (asking(cutoff={f"field{number}": 1 for number in range(100_000)}), SearchRequest),
    ],
    ids=["queries", "exclude", "features", "items", "fields of a query", "fields of a cut-off"],
)
def test_the_first_error_is_enough(body: dict[str, Any], request_class: type[BaseModel]) -> None:
    """An error for each of a million numbers would take a gigabyte."""
    with pytest.raises(ValidationError) as refused:
        request_class.model_validate(body)
    assert refused.value.error_count() == 1


ACCEPTED = [
    query(text="a"),
    query(text="a", embedding=None, features=None, history=None, user_id=None),
    query(embedding=[0.5, 1]),
    query(features={}),
    query(features={"0": 1, "17": 0.5}),
    query(history=["a", 3]),
    query(history=[]),
    query(user_id=0),
    query(user_id="u"),
    query(text="a", exclude=["a", 3], exclude_seen=False),
    query(text="a", exclude_seen=None),
    asking(k=None, cutoff=None, num_probes=None),
    asking(method="gated", num_rounds=2),
    asking(method="gated", num_rounds=None),
    asking(k=3, method="average", num_candidates=3, num_per_embedding=1, min_coverage=0),
    asking(cutoff={"mass": 0.5}),
    asking(cutoff={"mass": 0.5, "background": "sphere", "min_items": 1, "max_items": 2}),
    asking(cutoff={"mass": None, "coverage": 0.5}),
    asking(cutoff={"nucleus": 0.5, "background": None}),
    asking(cutoff={"probability": 0.5}),
    asking(cutoff={"score": -1}),
    asking(cutoff={"score": 37.5}),
    asking(cutoff={"top_k": 1, "max_items": None}),
    asking(method=None),
]
REFUSED = [
    {},
    {"queries": []},
    {"queries": {}},
    {"queries": [[]]},
    query(),
    query(text=None),
    query(text=None, user_id=None),
    query(text="a", user_id=0),
    query(embedding=[1.0], history=["a"]),
    query(text="a", embedding=[1.0], features={"1": 1.0}),
    query(text=""),
    query(text=1),
    query(texts="a"),
    query(embedding=[]),
    query(embedding=["1"]),
    query(embedding=[True]),
    query(features={"x": 1.0}),
    query(features={"01": 1.0}),
    query(features={"1": "1"}),
    query(history=[None]),
    query(history=[True]),
    query(user_id=False),
    query(text="a", exclude=None),
    query(text="a", exclude=[1.5]),
    query(text="a", exclude_seen=1),
    asking(num_rounds=1),
    asking(num_rounds=101),
    asking(k=0),
    asking(k=True),
    asking(k="3"),
    asking(k=2**31),
    asking(method="magic"),
    asking(min_coverage=1.1),
    asking(min_coverage=None),
    asking(cutoff={}),
    asking(cutoff={"mass": None}),
    asking(cutoff={"mass": 0.5, "score": 0}),
    asking(cutoff={"mass": 1}),
    asking(cutoff={"min_items": 1}),
    asking(cutoff={"score": 1e7}),
    asking(cutoff={"score": 0, "min_items": -1}),
    asking(cutoff={"score": 0, "speed": 1}),
    asking(speed=1),
]


@pytest.mark.parametrize(
    ("body", "is_taken"), [(body, True) for body in ACCEPTED] + [(body, False) for body in REFUSED], ids=repr
)
def test_json_schema_takes_what_the_request_takes(body: dict[str, Any], is_taken: bool) -> None:
    """All but what it cannot say: a number as 3.0, which it calls an integer, and how two fields go together."""
    schema = jsonschema.Draft202012Validator(SearchRequest.model_json_schema())
    assert schema.is_valid(body) == is_taken
    if is_taken:
        SearchRequest.model_validate(body)
    else:
        assert " must " in told(body)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ([True, None, "x", 1.5], "[true, null, 'x', 1.5]"),
        ("\ud800", "'\\ud800'"),
        ("a\nb", "'a\\nb'"),
        ([[[[1]]]], "[[[[...]]]]"),
        (-0.0, "-0.0"),
    ],
)
def test_what_came_is_repeated(value: Any, text: str) -> None:
    assert shortened(value) == text


@pytest.mark.parametrize("value", ["x" * 10**6, ["x" * 99] * 99, 10**4000, {"x" * 99: "y" * 99}, ["x"] * 10**6])
def test_what_came_is_shortened(value: Any) -> None:
    assert 10 < len(shortened(value)) <= 60
    assert "..." in shortened(value)
