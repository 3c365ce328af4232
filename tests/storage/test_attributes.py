"""Columns that become attributes: each Arrow type that holds the right values, and what is refused."""

import math
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.modules.similarities.bm25 import TermWeights
from rails_ray.modules.similarities.states import Codes, ItemState, QuantizedItems
from rails_ray.storage.attributes import ATTRIBUTE, KINDS, TAKEN, TYPES, check_names, kinds_for, kinds_of, read_column
from rails_ray.storage.parquet import NAMED
from rails_ray.storage.plain_values import BadValueError
from support.arrow_arrays import INTEGER_MAKES, TEXT_MAKES, Make, bytes_of, decimals, dictionary, in_runs, of_type, runs
from support.tried import tried

FLOATS: list[Make] = [*map(of_type, (pa.float16(), pa.float32(), pa.float64())), runs(of_type(pa.float32()))]


def assert_read(array: pa.Array, kind: str, expected: list[Any]) -> None:
    """Check an array that says its kind by itself, and one whose kind is known."""
    for own in (ATTRIBUTE, KINDS[kind]):
        for values, wanted in ((array, expected), (array[1:], expected[1:])):
            found = own.read(values)
            found.validate(full=True)
            assert found.type == TYPES[kind]
            assert found.to_pylist() == wanted


@tried()
@given(st.lists(st.none() | st.text(), min_size=1), st.sampled_from(TEXT_MAKES))
def test_strings(values: list[str | None], make: Make) -> None:
    assert_read(make(values), "string", values)


@tried()
@given(st.lists(st.none() | st.integers(0, 120), min_size=1), st.sampled_from(INTEGER_MAKES))
def test_integers(values: list[int | None], make: Make) -> None:
    """Whole floats are integers where the version has integers, and decimals if they have no places."""
    array = make(values)
    found = KINDS["int"].read(array)
    assert (found.type, found.to_pylist()) == (pa.int64(), values)
    assert KINDS["float"].read(array).to_pylist() == values
    plain = array.type.value_type if pa.types.is_run_end_encoded(array.type) else array.type
    has_places = pa.types.is_floating(plain) or (pa.types.is_decimal(plain) and plain.scale > 0)
    alone = ATTRIBUTE.read(array)
    assert (alone.type, alone.to_pylist()) == (pa.float64() if has_places else pa.int64(), values)


@tried()
@given(
    st.lists(st.none() | st.sampled_from([0.5, -2.0, 1024.0, math.inf, math.nan]), min_size=1), st.sampled_from(FLOATS)
)
def test_floats_of_which_nan_is_null(values: list[float | None], make: Make) -> None:
    assert_read(make(values), "float", [None if own is None or math.isnan(own) else own for own in values])


def test_decimals() -> None:
    assert_read(pa.array([Decimal("9.50"), None]), "float", [9.5, None])
    assert_read(decimals(pa.decimal128(20, 0))([2**60, None]), "int", [2**60, None])


@tried()
@given(
    st.lists(st.none() | st.booleans(), min_size=1), st.sampled_from([of_type(pa.bool_()), runs(of_type(pa.bool_()))])
)
def test_booleans(values: list[bool | None], make: Make) -> None:
    assert_read(make(values), "bool", values)
    assert_read(in_runs(dictionary(make)(values)) if make(values).type == pa.bool_() else make(values), "bool", values)


WHOLE_SECONDS = st.datetimes(datetime(1700, 1, 1), datetime(2250, 1, 1)).map(lambda own: own.replace(microsecond=0))


@tried()
@given(
    st.lists(st.none() | WHOLE_SECONDS, min_size=1),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.sampled_from([None, "UTC", "+05:30", "-11:00"]),
)
def test_timestamps_of_every_unit_and_zone(values: list[datetime | None], unit: str, zone: str | None) -> None:
    """Without a zone they are in UTC."""
    hours, minutes = (0, 0) if zone in (None, "UTC") else (int(zone[:3]), int(zone[0] + zone[4:]))
    own = timezone(timedelta(hours=hours, minutes=minutes))
    given = values if zone is None else [None if value is None else value.replace(tzinfo=own) for value in values]
    expected = [None if value is None else value.replace(tzinfo=own).astimezone(UTC) for value in values]
    array = pa.array(given, pa.timestamp(unit, zone))
    assert_read(array, "timestamp", expected)
    assert_read(array.dictionary_encode(), "timestamp", expected)


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates(kind: pa.DataType) -> None:
    days = [date(2026, 1, 31), None, date(1, 1, 1), date(9999, 12, 31)]
    expected = [None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days]
    assert_read(pa.array(days, kind), "timestamp", expected)


def test_nanoseconds_are_cut_to_microseconds() -> None:
    array = pa.array([1_999], pa.timestamp("ns"))
    assert_read(array, "timestamp", [datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)])


LISTS = st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3), min_size=1)


@tried()
@given(LISTS, st.sampled_from([pa.list_, pa.large_list, pa.list_view, pa.large_list_view]), st.sampled_from(TEXT_MAKES))
def test_lists_of_strings(values: list[list[str | None] | None], layout: Any, make: Make) -> None:
    flat = make([own for row in values if row is not None for own in row])
    plain = pa.array(values, pa.list_(pa.string()))
    if layout in (pa.list_, pa.large_list):
        cls, offset = (pa.ListArray, pa.int32()) if layout is pa.list_ else (pa.LargeListArray, pa.int64())
        array = cls.from_arrays(plain.offsets.cast(offset), flat, mask=plain.is_null())
    else:
        array = pa.array(values, layout(pa.string()))
    assert_read(array, "strings", values)


def test_lists_of_one_length_and_of_nothing() -> None:
    values = [["a", "b"], None, ["c", None]]
    assert_read(pa.array(values, pa.list_(pa.string(), 2)), "strings", values)
    assert_read(pa.array([[], None, [None]]), "strings", [[], None, [None]])


@pytest.mark.parametrize("kind", KINDS)
def test_all_may_be_null_where_the_kind_is_known(kind: str) -> None:
    assert KINDS[kind].read(pa.nulls(3)).type == TYPES[kind]
    assert pa.types.is_null(ATTRIBUTE.read(pa.nulls(3)).type)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([{"a": 1}]), r"be of type boolean, .* or list of strings, got struct<a: int64>"),
        (pa.array([[1, 2]]), r"be of type boolean, .* or list of strings, got list<.*: int64>"),
        (pa.array([[["a"]]]), r"be of type boolean, .*, got list<.*list<.*string"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), r"be of type boolean, .*, got map<string, int64"),
        (pa.array([timedelta(1)]), r"be of type boolean, .*, got duration\[us\]"),
        (pa.array([0], pa.time32("s")), r"be of type boolean, .*, got time32\[s\]"),
        (pa.array([b"\xff"]), r"hold text in UTF-8, got b'\\xff'"),
        (pa.array([1, 2**63], pa.uint64()), rf"hold whole numbers within int64, got {2**63}"),
        (decimals(pa.decimal128(38, 0))([10**30]), rf"hold whole numbers within int64, got {10**30}"),
        (pa.array([0, 10**12], pa.timestamp("s")), rf"hold times of the years 1 to 9999, got {10**12} s since 1970"),
        (pa.array([-(10**8)], pa.date32()), rf"hold times of the years 1 to 9999, got {-86400 * 10**8} s since 1970"),
        (pa.array([2**62], pa.timestamp("us", "UTC")), r"hold times of the years 1 to 9999, got .* us since 1970"),
    ],
)
def test_what_is_no_attribute(array: pa.Array, message: str) -> None:
    with pytest.raises(BadValueError, match=f"^{message}"):
        ATTRIBUTE.read(array)


@pytest.mark.parametrize(
    ("kind", "array", "message"),
    [
        ("int", pa.array([1.0, 2.5]), r"hold whole numbers, .*, got 2\.5"),
        ("int", pa.array(["1"]), "be of type integer, got string"),
        (
            "float",
            pa.array([2**53 + 1]),
            rf"hold whole numbers within double up to 2\*\*53, as it rounds larger ones, got {2**53 + 1}",
        ),
        ("float", pa.array([True]), "be of type float, integer or decimal, got bool"),
        ("bool", pa.array([1]), "be of type boolean, got int64"),
        ("string", pa.array([1]), "be of type string, got int64"),
        ("timestamp", pa.array([1]), "be of type timestamp or date, got int64"),
        ("timestamp", pa.array(["2026-01-31"]), "be of type timestamp or date, got string"),
        ("strings", pa.array(["a"]), "be of type list of strings, got string"),
    ],
)
def test_what_is_not_of_a_known_kind(kind: str, array: pa.Array, message: str) -> None:
    with pytest.raises(BadValueError, match=f"^{message}"):
        KINDS[kind].read(array)


def test_a_column_in_memory() -> None:
    column = pa.chunked_array([pa.array([1, 2], pa.int64()), pa.array([3, None], pa.int64())])
    assert read_column("year", column, ATTRIBUTE).to_pylist() == [1, 2, 3, None]
    own = kinds_for("v7", {"year": "int", "tags": "strings"})
    assert read_column("year", column, own["year"]).type == pa.int64()
    with pytest.raises(
        ValueError, match="attribute 'tags' must be of type list of strings, as version v7 has it, got int64"
    ):
        read_column("tags", column, own["tags"])
    large = pa.chunked_array([pa.array([1], pa.uint64()), pa.array([2, 2**63], pa.uint64())])
    with pytest.raises(ValueError, match=rf"attribute 'year' must hold .* within int64, got {2**63} in row 2$"):
        read_column("year", large, ATTRIBUTE)
    with pytest.raises(ValueError, match="attribute 'year' must have a value for some item, got null for all: leave"):
        read_column("year", pa.chunked_array([pa.nulls(2)]), ATTRIBUTE)


def test_kinds_are_those_of_the_types() -> None:
    assert kinds_of(TYPES) == {kind: kind for kind in TYPES} == {kind: kind for kind in KINDS}


def test_names_that_parts_need_are_taken() -> None:
    """All columns of states are named as their fields are."""
    states = (ItemState, QuantizedItems, Codes, TermWeights)
    assert set(TAKEN) == {*NAMED, "input", *(field.name for state in states for field in fields(state))}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["price", "Weights"], "other names than item_id, .*, got 'Weights': store it .* item_Weights=Weights does"),
        (["text"], "attributes must have other names than item_id, title, .*, got 'text': store it under another name"),
        (["$in"], r"attributes must have names that do not begin with \$, .*, got '\$in'"),
        ([""], r"attributes must have names .*, got ''"),
        (["Price", "price"], "names that differ in more than case, got 'Price' and 'price': leave out one"),
        (["price", "price"], "names that differ in more than case, got 'price' and 'price': leave out one"),
    ],
)
def test_names_that_cannot_be(names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_names(names)


def test_numbers_of_numpy() -> None:
    assert ATTRIBUTE.read(pa.array(np.float16([1.5, np.nan]))).to_pylist() == [1.5, None]
    assert ATTRIBUTE.read(bytes_of(pa.binary())(["a", None])).to_pylist() == ["a", None]
