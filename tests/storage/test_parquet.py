import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray.errors import DamagedError
from rails_ray.modules.similarities.states import Codes, ItemState
from rails_ray.storage import codes, parquet
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import StateEntry, StateReader, item_part, item_state, part_to_bytes
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_items_come_back_as_they_were(dtype: torch.dtype) -> None:
    _, items = random_states(1, 5)
    narrow = ItemState(items.components.to(dtype), items.gate, items.average.to(dtype))
    part = pq.read_table(io.BytesIO(part_to_bytes(part_of(narrow))))
    back = item_state(part, ItemState)
    assert (back.components.dtype, back.gate.dtype) == (dtype, torch.float32)
    assert torch.equal(back.components, narrow.components)
    assert torch.equal(back.average, narrow.average)


def test_a_column_of_another_dtype() -> None:
    part = part_of(random_states(1, 3)[1])
    wide = pa.FixedSizeListArray.from_arrays(part["gate"].combine_chunks().flatten().cast(pa.float64()), 6)
    with pytest.raises(DamagedError, match="must have 6 numbers of float32 for each item, got 6 of float64"):
        item_state(part.set_column(part.column_names.index("gate"), "gate", wide), ItemState)


@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (4, 16)])
def test_codes_come_back_as_they_were(shape: tuple[int, int]) -> None:
    codes = torch.randint(5000, shape, dtype=torch.int32)
    items = pa.table({"item_id": [f"i{row}" for row in range(shape[0])]})
    part = pq.read_table(io.BytesIO(part_to_bytes(item_part(items, Codes(codes)))))
    assert part.column_names == ["item_id", "codes"]
    assert str(part.schema.field("codes").type).startswith("fixed_size_list<")
    assert part.schema.field("codes").type.value_type == pa.int32()
    back = item_state(part, Codes)
    assert isinstance(back, Codes)
    assert back.codes.dtype == torch.int32
    assert torch.equal(back.codes, codes)
    assert torch.equal(item_state(part.slice(1, 2), Codes).codes, codes[1:3])


STATE_OF = {"kind": "components", "shapes": {"components": [3, 4]}, "dtypes": {"components": "float32"}}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "an index part must say how it stores its items, got: b'state': encode a new one"),
        (b"{", "an index part must say how it stores its items, got: .*: encode a new one"),
        (b'{"kind": "codes"}', "an index part must say how it stores its items, got: .*'shapes'"),
        (
            json.dumps(STATE_OF | {"shapes": {"components": [2, 4]}}).encode(),
            "column 'components' of an index part must have 2 x 4 numbers of float32 for each item, got 12 of float32",
        ),
        (
            json.dumps(STATE_OF | {"shapes": {"codes": [3]}, "dtypes": {"codes": "int32"}}).encode(),
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
    assert part.column_names == ["item_id", "components"]
    back = item_state(part, ItemState)
    assert torch.equal(back.components, items.components)
    assert torch.equal(back.average, items.average)


@pytest.mark.parametrize("names", [["item_id"], ["title", "input", "item_row", "item_id"]])
def test_a_part_holds_what_answers_need_of_its_items(names: list[str]) -> None:
    _, state = random_states(1, 2)
    values = {"item_row": [5, 6], "item_id": [10, 11], "title": ["a", "b"], "input": ["long", "text"]}
    part = item_part(pa.table({name: values[name] for name in names}), state)
    assert [name for name in part.column_names if name not in ("components", "average", "gate")] == (
        ["item_id", "title"] if "title" in names else ["item_id"]
    )
    assert part["item_id"].to_pylist() == [10, 11]


def test_a_part_is_the_same_bytes_each_time() -> None:
    """So that of two attempts at the same items each can stand for the other."""
    _, items = random_states(1, 50)
    assert part_to_bytes(part_of(items)) == part_to_bytes(part_of(items))


class Touching:
    """It makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return Path.touch, (self.made,)


def objects(made: Path) -> pa.Array:
    """A column of Ray Data's objects, in which a value is unpickled when somebody looks at it."""
    pytest.importorskip("ray.data")
    from ray.data._internal.object_extensions.arrow import ArrowPythonObjectArray

    return ArrowPythonObjectArray.from_objects([Touching(made)])


def test_a_column_of_pickled_objects_is_not_read(tmp_path: Path) -> None:
    made = tmp_path / "it-ran"
    data = parquet.to_bytes(pa.table({"item_id": objects(made)}))
    told = "column 'item_id' of a stored table must be of a plain type, got extension<ray.data.arrow_pickled_object"
    with pytest.raises(DamagedError, match=told):
        parquet.read_plain(io.BytesIO(data))
    nested = pa.StructArray.from_arrays([objects(made)], ["below"])
    with pytest.raises(DamagedError, match="column 'title' of a stored table must be of a plain type"):
        parquet.read_plain(io.BytesIO(parquet.to_bytes(pa.table({"title": nested}))))
    store = Storage(str(tmp_path))
    row = pa.FixedSizeListArray.from_arrays(pa.array([1, 2], pa.int32()), 2)
    store.write("runs/r/codes.parquet", parquet.to_bytes(pa.table({"item_id": objects(made), "codes": row})))
    with pytest.raises(DamagedError, match="column 'item_id' of a stored table must be of a plain type"):
        codes.read(store, "runs/r")
    assert not made.exists()
    pq.read_table(io.BytesIO(data))["item_id"].to_pylist()
    assert made.exists(), "as it would be without"


@pytest.mark.parametrize("name", ["nothing", "_dynamo", "load", "float32 ", ""])
def test_a_dtype_that_is_none(name: str) -> None:
    entry = StateEntry(kind=ItemState.kind, shapes={"components": [1, 2]}, dtypes={"components": name})
    with pytest.raises(DamagedError, match=f"an index part must hold numbers of a dtype of torch, got '{name}'"):
        StateReader(entry, ItemState, 1)
