import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples import part_of, random_states
from rails_ray.errors import DamagedError
from rails_ray.similarities.states import ItemState
from rails_ray.storage.parquet import item_state, split_by_shard, to_bytes


@pytest.mark.parametrize("has_gate", [True, False])
def test_items_come_back_as_they_were(has_gate: bool) -> None:
    _, items = random_states(1, 5)
    items = items if has_gate else ItemState(items.components, None, items.average)
    part = pq.read_table(io.BytesIO(to_bytes(part_of(items))))
    back = item_state(part)
    assert torch.equal(back.components, items.components)
    assert torch.equal(back.average, items.average)
    assert (back.gate is None) != has_gate
    assert str(part.schema.field("components").type).startswith("fixed_size_list<")


def test_a_slice_holds_its_own_items() -> None:
    _, items = random_states(1, 9)
    assert torch.equal(item_state(part_of(items).slice(4, 3)).components, items.components[4:7])


def test_numbers_that_are_none() -> None:
    _, items = random_states(1, 3)
    items.average[1, 0] = torch.nan
    with pytest.raises(DamagedError, match="column 'average' of an index part must hold finite numbers, got NaN"):
        item_state(part_of(items))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_split_by_shard_keeps_every_row_in_its_shard(shard_items: list[int], data: st.DataObject) -> None:
    """Blocks may come as any run of consecutive rows, or with gaps."""
    total = sum(shard_items)
    rows = sorted(data.draw(st.sets(st.integers(0, total - 1), min_size=1)))
    table = pa.table({"item_row": pa.array(rows)})
    shard_of = [shard for shard, size in enumerate(shard_items) for _ in range(size)]
    seen = []
    for shard, part in split_by_shard(table, shard_items):
        piece = part["item_row"].to_pylist()
        assert piece == list(range(piece[0], piece[0] + len(piece)))
        assert {shard_of[row] for row in piece} == {shard}
        seen += piece
    assert seen == rows
