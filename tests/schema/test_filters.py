"""Filters as they are written: what is read, and what is refused, at which place."""

import re
from typing import Any

import pytest
from hypothesis import given

from rails_ray.schema.filters import (
    DEEPEST,
    MOST_CONDITIONS,
    MOST_VALUES,
    AllOf,
    AnyOf,
    Comparison,
    Negation,
    canonical,
    parse,
)
from support.attributes import KINDS, some_filters


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"year": 1}
    for _ in range(levels - 1):
        found = {"$not": found}
    return found


def test_what_is_read() -> None:
    given_filter = {
        "lang": "fr",
        "price": {"$gte": 1, "$ne": 3.5},
        "$or": [{"tags": {"$nin": ["a"]}}, {"at": {"$lt": "1970-01-01T00:00:01Z"}}],
        "$not": {"new": {"$exists": False}},
    }
    assert parse(given_filter, KINDS) == AllOf(
        [
            Comparison("lang", "$eq", "fr"),
            AllOf([Comparison("price", "$gte", 1.0), Negation(Comparison("price", "$eq", 3.5))]),
            AnyOf([Negation(Comparison("tags", "$in", ["a"])), Comparison("at", "$lt", 1_000_000)]),
            Negation(Negation(Comparison("new", "$exists", True))),
        ]
    )
    assert parse({}) == AllOf([])


@pytest.mark.parametrize(
    ("written", "microseconds"),
    [
        (1.5, 1_500_000),
        (1_700_000_000, 1_700_000_000_000_000),
        (1_700_000_000_123, 1_700_000_000_123_000),
        ("2026-01-31", 1_769_817_600_000_000),
        ("2026-01-31T02:00:00.000001+02:00", 1_769_817_600_000_001),
    ],
)
def test_times(written: Any, microseconds: int) -> None:
    assert parse({"at": {"$gt": written}}, KINDS) == Comparison("at", "$gt", microseconds)


@given(some_filters)
def test_the_text_of_a_filter_is_a_filter_and_does_not_depend_on_the_order_of_fields(filter: dict[str, Any]) -> None:
    import json

    def turned(own: Any) -> Any:
        if isinstance(own, dict):
            return {name: turned(own[name]) for name in reversed(own)}
        return [turned(one) for one in own] if isinstance(own, list) else own

    text = canonical(filter)
    assert text == canonical(turned(filter))
    assert parse(json.loads(text), KINDS) == parse(json.loads(canonical(json.loads(text))), KINDS)


REFUSED: list[tuple[Any, str]] = [
    ([], "filter must be a JSON object, got []"),
    ({1: 2}, "filter must have strings as keys, got 1"),
    ({"colour": "red"}, "filter must name attributes of the version, lang, price, year, new, at, tags, got 'colour'"),
    ({"$or": [{"colour": 1}]}, "filter.$or[0] must name attributes of the version, lang"),
    ({"$nor": []}, "filter must have columns, or $and, $or, $not, got '$nor'"),
    ({"$and": []}, "filter.$and must be a list of at least one filter, got []"),
    ({"$and": {"year": 1}}, "filter.$and must be a list of at least one filter, got {'year': 1}"),
    ({"$or": [{"year": 1}, 7]}, "filter.$or[1] must be a JSON object, got 7"),
    ({"$not": [1]}, "filter.$not must be a JSON object, got [1]"),
    ({"price": {}}, "filter.price must have an operator, one of $eq, $ne"),
    ({"price": {"lt": 1}}, "filter.price must have operators among $eq, $ne, $gt, $gte, $lt, $lte, $in, $nin, $exists"),
    ({"price": {"$regex": "a"}}, "$in, $nin, $exists, got '$regex'"),
    ({"price": {"$not": 3}}, "filter.price.$not must be a JSON object, got 3"),
    ({"price": {"$lt": "a"}}, "filter.price.$lt must be a number, as the column is of type float, got 'a'"),
    ({"price": True}, "filter.price must be a number, as the column is of type float, got true"),
    ({"price": float("nan")}, "filter.price must be a number, as the column is of type float, got nan"),
    ({"price": 10**400}, "filter.price must be a number, as the column is of type float, got 1000"),
    ({"year": 1.5}, "filter.year must be an integer of 64 bits, as the column is of type int, got 1.5"),
    (
        {"year": 2**63},
        "filter.year must be an integer of 64 bits, as the column is of type int, got 9223372036854775808",
    ),
    ({"year": False}, "filter.year must be an integer of 64 bits, as the column is of type int, got false"),
    ({"new": 1}, "filter.new must be true or false, as the column is of type bool, got 1"),
    ({"lang": 3}, "filter.lang must be a string, as the column is of type string, got 3"),
    ({"lang": None}, 'as the column is of type string, got null: {"$exists": false} passes items without a value'),
    ({"lang": ["fr", "de"]}, "got ['fr', 'de']: take $in for one of several values"),
    ({"tags": {"$in": "a"}}, "filter.tags.$in must be a list, got 'a'"),
    ({"tags": {"$in": ["a", 2]}}, "filter.tags.$in[1] must be a string, as the column is of type strings, got 2"),
    ({"tags": {"$lt": "a"}}, "filter.tags.$lt must compare a column that has an order, got one of type strings"),
    ({"new": {"$gte": True}}, "filter.new.$gte must compare a column that has an order, got one of type bool"),
    (
        {"at": "yesterday"},
        "filter.at must be a time in ISO 8601, such as 2026-01-31T23:59:00Z, or in seconds since 1970",
    ),
    ({"at": 1e30}, "as the column is of type timestamp, got 1e+30"),
    ({"at": float("inf")}, "as the column is of type timestamp, got inf"),
    ({"price": {"$exists": 1}}, "filter.price.$exists must be true or false, got 1"),
    ({"year": {"$in": [1] * (MOST_VALUES + 1)}}, "filter.year.$in must have a length of at most 10000, got 10001"),
    ({"$or": [{"year": 1}] * (MOST_CONDITIONS + 1)}, "filter must have at most 1000 conditions, got more"),
    (nested(100), "filter must nest at most 16 levels deep, got more"),
    ({"a b": 1}, "filter must name attributes"),
]


@pytest.mark.parametrize(("wrong", "sentence"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(wrong: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse(wrong, KINDS)


def test_a_place_is_written_as_a_client_would_write_it() -> None:
    with pytest.raises(
        ValueError, match=re.escape("filter['a b'].$lt must be a string, a finite number, or true or fal")
    ):
        parse({"a b": {"$lt": None}})


def test_a_version_without_attributes() -> None:
    with pytest.raises(
        ValueError, match="filter must be left out for a version whose items have no attributes, got 'lan"
    ):
        parse({"lang": "fr"}, {})


def test_as_deep_as_allowed() -> None:
    parse(nested(DEEPEST), KINDS)
    with pytest.raises(ValueError, match="at most 16 levels"):
        parse(nested(DEEPEST + 1), KINDS)
