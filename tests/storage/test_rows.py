"""Tables that were read whole: mapped into memory, with distinct ids, and ids that name rows of another table."""

import gc

import numpy as np
import psutil
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.errors import StorageError
from rails_ray.storage import rows
from rails_ray.storage.rows import Rows, check_distinct, find_rows, mapped, rows_of


def of(name: str, column: str, values: pa.ChunkedArray) -> Rows:
    return Rows(pa.table({column: values}), (name,), (len(values),))


def test_a_mapped_table_takes_no_memory_until_it_is_used() -> None:
    values = np.zeros(2**21)
    before = psutil.Process().memory_info().rss
    table = mapped(pa.table({"a": values}) for _ in range(16))  # 256 MB
    gc.collect()
    assert table.num_rows == 16 * len(values)
    assert psutil.Process().memory_info().rss - before < 100 * 2**20


def test_no_room_for_a_mapped_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rows, "_write_all", full)
    with pytest.raises(
        StorageError, match="must have room for the columns that are read, got: No space left on device"
    ):
        mapped([pa.table({"a": [1]})])


INTEGERS = st.sampled_from([pa.int8(), pa.uint8(), pa.int32(), pa.int64()])
STRINGS = st.sampled_from([pa.string(), pa.large_string()])


@given(st.data())
def test_rows_of_equals_the_loop(data: st.DataObject) -> None:
    """Whatever the widths of the two columns; a number too large for one of them is no other number."""
    is_integer = data.draw(st.booleans())
    kinds = INTEGERS if is_integer else STRINGS
    known = data.draw(st.lists(st.integers(0, 9), min_size=1, unique=True))
    ids = data.draw(st.lists(st.sampled_from([*known, 100]), max_size=9))
    stranger = 2**32 + 3
    asked, there = (
        of(
            name,
            "c",
            pa.chunked_array([pa.array(values if is_integer else [f"{v}" for v in values], data.draw(kinds))]),
        )
        for name, values in (("f", ids), ("g", known))
    )
    if 100 in ids:
        with pytest.raises(
            ValueError, match=f"column 'c' of f must hold ids of g, got '?100'? in row {ids.index(100)}"
        ):
            rows_of(asked, there, "c")
    else:
        assert rows_of(asked, there, "c").tolist() == [known.index(value) for value in ids]
    with pytest.raises(ValueError, match=f"column 'c' of f must .*, got ({stranger} in row 0|int64)"):
        rows_of(of("f", "c", pa.chunked_array([[stranger]])), there, "c")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "c", "b", "a"], r"column 'c' of f must hold distinct ids, got '[ab]' again in row [34]"),
        ([3, 1, 3], "column 'c' of f must hold distinct ids, got 3 again in row 2"),
    ],
)
def test_ids_must_be_distinct(ids: list[str] | list[int], message: str) -> None:
    check_distinct(of("f", "c", pa.chunked_array([ids[:2]])), "c")
    with pytest.raises(ValueError, match=message):
        check_distinct(of("f", "c", pa.chunked_array([ids[:1], ids[1:]])), "c")


@pytest.mark.parametrize("known", [pa.int64(), pa.uint64(), pa.large_string()])
@pytest.mark.parametrize("given_type", [pa.int64(), pa.uint64(), pa.large_string()])
def test_ids_of_two_tables_may_be_written_in_two_types(known: pa.DataType, given_type: pa.DataType) -> None:
    there = of("g", "c", pa.chunked_array([pa.array(map(str, [7, 0, 12])).cast(known)]))
    named = of("f", "c", pa.chunked_array([pa.array(["12", None, "7", "8"]).cast(given_type)]))
    assert find_rows(named, there, "c").tolist() == [2, -1, 0, -1]


def test_a_large_unsigned_id_is_no_negative_one() -> None:
    there = of("g", "c", pa.chunked_array([pa.array([-1, 5])]))
    named = of("f", "c", pa.chunked_array([pa.array([2**64 - 1, 5], pa.uint64())]))
    assert find_rows(named, there, "c").tolist() == [-1, 1]
    assert find_rows(there, named, "c").tolist() == [-1, 1]
