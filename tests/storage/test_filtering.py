"""Filters over columns: what a loop over items in Python passes."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

from oracles.filters import passes
from rails_ray.schema.filters import parse
from rails_ray.storage.filtering import passing
from support.attributes import KINDS, some_filters, some_items, table_of
from support.tried import tried


@tried(300)
@given(some_filters, some_items)
def test_it_equals_the_oracle(filter: dict[str, Any], items: list[dict[str, Any]]) -> None:
    """Slices and several chunks of the columns too."""
    table, condition = table_of(items), parse(filter, KINDS)
    expected = [passes(filter, item) for item in items]
    assert passing(condition, table).tolist() == expected
    assert passing(condition, table.slice(1)).tolist() == expected[1:]
    assert passing(condition, pa.concat_tables([table.slice(2), table])).tolist() == expected[2:] + expected


def test_a_missing_value_passes_nothing_that_asks_for_one() -> None:
    table = table_of([dict.fromkeys(KINDS), dict.fromkeys(KINDS) | {"lang": "fr", "tags": []}])
    for filter, expected in [
        ({"lang": {"$ne": "de"}}, [False, True]),
        ({"lang": {"$nin": []}}, [False, True]),
        ({"$not": {"lang": "de"}}, [False, True]),
        ({"$not": {"lang": {"$in": []}}}, [False, True]),
        ({"tags": {"$ne": "a"}}, [False, True]),
        ({"lang": {"$exists": False}}, [True, False]),
        ({"$or": [{"lang": {"$exists": False}}, {"price": 1}]}, [True, False]),
        ({}, [True, True]),
    ]:
        assert passing(parse(filter, KINDS), table).tolist() == expected, filter


def test_an_expression() -> None:
    table = table_of([dict.fromkeys(KINDS) | {"price": price} for price in (1.0, None, 3.0)])
    assert passing(pc.field("price") > 2, table).tolist() == [False, False, True]
    assert passing(pc.field("price").is_null(), table.slice(1)).tolist() == [True, False]


@pytest.mark.parametrize("wrong", [pc.field("colour") == 1, pc.field("price") == "a", pc.field("price") + 1])
def test_an_expression_that_does_not_fit(wrong: pc.Expression) -> None:
    with pytest.raises(
        ValueError, match=r"filter must be an expression of booleans over the columns lang, price, year"
    ):
        passing(wrong, table_of([dict.fromkeys(KINDS)]))


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_both_zeros_are_one_number(zero: float) -> None:
    table = table_of([dict.fromkeys(KINDS) | {"price": price} for price in (0.0, -0.0, 1.0)])
    for filter, expected in [
        ({"price": zero}, [True, True, False]),
        ({"price": {"$in": [zero, 5.0]}}, [True, True, False]),
        ({"price": {"$nin": [zero]}}, [False, False, True]),
        ({"price": {"$ne": zero}}, [False, False, True]),
    ]:
        assert passing(parse(filter, KINDS), table).tolist() == expected, filter
