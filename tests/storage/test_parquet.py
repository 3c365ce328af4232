import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.errors import DamagedError
from rails_ray.similarities.states import Codes, ItemState
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import (
    INTEGER,
    TEXT,
    check_distinct,
    item_part,
    item_state,
    part_to_bytes,
    read_table,
    rows_of,
    to_bytes,
)
from support.examples import part_of, random_states


@pytest.mark.parametrize("has_gate", [True, False])
def test_items_come_back_as_they_were(has_gate: bool) -> None:
    _, items = random_states(1, 5)
    items = items if has_gate else ItemState(items.components, None, items.average)
    part = pq.read_table(io.BytesIO(part_to_bytes(part_of(items))))
    back = item_state(part, ItemState)
    assert torch.equal(back.components, items.components)
    assert torch.equal(back.average, items.average)
    assert (back.gate is None) != has_gate
    assert str(part.schema.field("components").type).startswith("fixed_size_list<")


@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (4, 16)])
def test_codes_come_back_as_they_were(shape: tuple[int, int]) -> None:
    codes = torch.randint(5000, shape, dtype=torch.int32)
    items = pa.table({"item_row": range(7, 7 + shape[0]), "item_id": [f"i{row}" for row in range(shape[0])]})
    part = pq.read_table(io.BytesIO(part_to_bytes(item_part(items, Codes(codes)))))
    assert part.column_names == ["item_row", "item_id", "codes"]
    assert str(part.schema.field("codes").type).startswith("fixed_size_list<")
    assert part.schema.field("codes").type.value_type == pa.int32()
    back = item_state(part, Codes)
    assert isinstance(back, Codes)
    assert back.codes.dtype == torch.int32
    assert torch.equal(back.codes, codes)
    assert torch.equal(item_state(part.slice(1, 2), Codes).codes, codes[1:3])


STATE_OF = {"kind": "components", "shapes": {"components": [3, 4]}}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "an index part must say how it stores its items, got: b'state': encode a new one"),
        (b"{", "an index part must say how it stores its items, got: .*: encode a new one"),
        (b'{"kind": "codes"}', "an index part must say how it stores its items, got: .*'shapes'"),
        (
            json.dumps(STATE_OF | {"shapes": {"components": [2, 4]}}).encode(),
            "column 'components' of an index part must have 2 x 4 numbers for each item, got 12: encode a new version",
        ),
        (
            json.dumps(STATE_OF | {"shapes": {"codes": [3]}}).encode(),
            "an index part must have the column 'codes' of its items' state, got none",
        ),
        (
            json.dumps(STATE_OF | {"kind": "graphs"}).encode(),
            "an index part must hold items of kind 'components', got 'graphs': encode a new one",
        ),
        (
            json.dumps(STATE_OF | {"shapes": {}}).encode(),
            "an index part must have the column 'components' of its items' state, got none",
        ),
    ],
)
def test_a_part_that_does_not_say_what_it_holds(metadata: bytes | None, message: str) -> None:
    part = part_of(random_states(1, 2)[1]).replace_schema_metadata(None if metadata is None else {"state": metadata})
    with pytest.raises(DamagedError, match=message):
        item_state(part, ItemState)


def test_a_slice_holds_its_own_items() -> None:
    _, items = random_states(1, 9)
    assert torch.equal(item_state(part_of(items).slice(4, 3), ItemState).components, items.components[4:7])


def test_numbers_that_are_none() -> None:
    _, items = random_states(1, 3)
    items.average[1, 0] = torch.nan
    with pytest.raises(DamagedError, match="column 'average' of an index part must hold finite numbers, got NaN"):
        item_state(part_of(items), ItemState)


def test_a_single_component_is_its_own_average_and_stored_once() -> None:
    _, items = random_states(1, 4, p_x=1, p_q=1)
    part = part_of(ItemState(items.components, None, items.average))
    assert part.column_names == ["item_row", "item_id", "components"]
    back = item_state(part, ItemState)
    assert torch.equal(back.components, items.components)
    assert torch.equal(back.average, items.average)


@pytest.mark.parametrize("names", [["item_row", "item_id"], ["title", "input", "item_row", "item_id"]])
def test_a_part_holds_what_answers_need_of_its_items(names: list[str]) -> None:
    _, state = random_states(1, 2)
    values = {"item_row": [5, 6], "item_id": [10, 11], "title": ["a", "b"], "input": ["long", "text"]}
    part = item_part(pa.table({name: values[name] for name in names}), state)
    assert [name for name in part.column_names if name not in ("components", "average", "gate")] == (
        ["item_row", "item_id", "title"] if "title" in names else ["item_row", "item_id"]
    )
    assert part["item_row"].to_pylist() == [5, 6]


def test_a_part_is_the_same_bytes_each_time() -> None:
    """So that of two attempts at the same items each can stand for the other."""
    _, items = random_states(1, 50)
    assert part_to_bytes(part_of(items)) == part_to_bytes(part_of(items))


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
    columns = [
        pa.chunked_array([pa.array(values if is_integer else [f"{value}" for value in values], data.draw(kinds))])
        for values in (ids, known)
    ]
    if 100 in ids:
        with pytest.raises(ValueError, match=f"column 'c' of f must be in g, got '?100'? in row {ids.index(100)}"):
            rows_of(*columns, "c", "f", "g")
    else:
        assert rows_of(*columns, "c", "f", "g").tolist() == [known.index(value) for value in ids]
    with pytest.raises(ValueError, match=f"column 'c' of f must be .*, got ({stranger} in row 0|int64)"):
        rows_of(pa.chunked_array([[stranger]]), columns[1], "c", "f", "g")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "c", "b", "a"], r"column 'c' of f must hold distinct ids, got '[ab]' again in row [34]"),
        ([3, 1, 3], "column 'c' of f must hold distinct ids, got 3 again in row 2"),
    ],
)
def test_ids_must_be_distinct(ids: list[str] | list[int], message: str) -> None:
    check_distinct(pa.chunked_array([ids[:2]]), "c", "f")
    with pytest.raises(ValueError, match=message):
        check_distinct(pa.chunked_array([ids[:1], ids[1:]]), "c", "f")


def test_optional_columns_are_read_and_checked_where_they_are(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.write("plain", to_bytes(pa.table({"a": [1]})))
    storage.write("both", to_bytes(pa.table({"b": ["x"], "z": [0], "a": [1]})))
    storage.write("wrong", to_bytes(pa.table({"a": [1], "b": [2]})))
    columns, optional = {"a": INTEGER}, {"b": TEXT}
    assert read_table(storage, "plain", columns, optional).column_names == ["a"]
    assert read_table(storage, "both", columns, optional).to_pydict() == {"a": [1], "b": ["x"]}
    with pytest.raises(ValueError, match=r"column 'b' of .*/wrong must be of type string, got int64"):
        read_table(storage, "wrong", columns, optional)
