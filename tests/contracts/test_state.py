"""What every state must hold: it is taken apart, moved and stored, and is the same again."""

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.families.recipes import RECIPES
from rails_ray.families.training_family import training_family
from rails_ray.families.vector_items.storing import PqItems
from rails_ray.modules.similarities.bm25 import TermCounts, TermWeights
from rails_ray.modules.similarities.states import (
    AnyItems,
    AnyQuery,
    Codes,
    ItemState,
    QuantizedItems,
    QueryState,
    Tables,
    concatenate,
    take,
    tensors_of,
    to,
    with_tensors,
)
from rails_ray.storage.parquet import item_part, item_state, part_to_bytes, state_entry

SIZES = st.integers(0, 1) | st.integers(0, 6)
ITEM_STATES: dict[str, Callable[[int], AnyItems]] = {
    "components": lambda num: ItemState(torch.randn(num, 3, 4), torch.randn(num, 6), torch.randn(num, 4)),
    "components without a gate": lambda num: ItemState(torch.randn(num, 2, 5), None, torch.randn(num, 5)),
    "components without an average": lambda num: ItemState(torch.randn(num, 2, 5), torch.randn(num, 4), None),
    "components with a surrogate": lambda num: ItemState(
        torch.randn(num, 2, 5), torch.randn(num, 4), torch.randn(num, 5), torch.randn(num, 3)
    ),
    "components alone": lambda num: ItemState(torch.randn(num, 2, 1), None, None),
    "half components": lambda num: ItemState(torch.randn(num, 2, 5).half(), None, torch.randn(num, 5).half()),
    "codes": lambda num: Codes(torch.randint(5000, (num, 3), dtype=torch.int32)),
    "terms": lambda num: TermWeights(torch.randint(2**62, (num, 5)), torch.rand(num, 5)),
    "quantized": lambda num: QuantizedItems(torch.randint(256, (num, 6), dtype=torch.uint8), torch.rand(num, 3)),
    "quantized, in lists, with vectors": lambda num: QuantizedItems(
        torch.randint(256, (num, 3), dtype=torch.uint8),
        torch.rand(num, 3),
        torch.randn(num, 6),
        torch.randn(num, 3, 4),
        torch.randn(num, 4),
        torch.randint(9, (num,), dtype=torch.int32),
    ),
    "codes of one part": lambda num: Codes(torch.randint(2, (num, 1), dtype=torch.int32)),
}
QUERY_STATES: dict[str, Callable[[int], AnyQuery]] = {
    "queries": lambda num: QueryState(torch.randn(num, 3, 4), torch.randn(num, 6), torch.rand(num)),
    "queries without a gate": lambda num: QueryState(torch.randn(num, 3, 4), None, torch.rand(num)),
    "terms of queries": lambda num: TermCounts(torch.randint(9, (num, 2)), torch.rand(num, 2), torch.ones(num)),
    "tables": lambda num: Tables(torch.randn(num, 3, 9), torch.ones(num)),
}
item_states = pytest.mark.parametrize("made", ITEM_STATES.values(), ids=ITEM_STATES)
all_states = pytest.mark.parametrize("made", [*ITEM_STATES.values(), *QUERY_STATES.values()])


def single(num: int) -> ItemState:
    """Of which the only component is the average."""
    components = torch.randn(num, 1, 4)
    return ItemState(components, None, components[:, 0])


def equal(one: AnyItems | AnyQuery, other: AnyItems | AnyQuery) -> bool:
    """To the bit, and missing where the other is."""
    assert type(one) is type(other)
    pairs = [(getattr(one, name), getattr(other, name)) for name in vars(one)]
    return all(
        a is b is None or (a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b))
        for a, b in pairs
    )


def test_every_kind_of_item_is_in_the_suite() -> None:
    configs = [recipe() for recipe in RECIPES]
    configs.append(configs[0].with_family(items=PqItems()))
    kinds = {training_family(config).item_state.kind for config in configs}
    assert {made(1).kind for made in ITEM_STATES.values()} == kinds


@pytest.mark.parametrize("made", [*ITEM_STATES.values(), single], ids=[*ITEM_STATES, "a single component"])
@given(SIZES)
def test_items_come_back_from_their_columns(made: Callable[[int], AnyItems], num: int) -> None:
    state = made(num)
    columns = state.columns()
    assert all(len(column) == num for column in columns.values())
    assert equal(state.from_columns(columns), state)


@pytest.mark.parametrize("made", [*ITEM_STATES.values(), single], ids=[*ITEM_STATES, "a single component"])
@given(SIZES)
def test_items_come_back_from_a_part(made: Callable[[int], AnyItems], num: int) -> None:
    state = made(num)
    items = pa.table({"item_id": pa.array([f"i{row}" for row in range(num)], pa.string())})
    part = pq.read_table(io.BytesIO(part_to_bytes(item_part(items, state))))
    assert part.column_names == ["item_id", *state.columns()]
    entry = state_entry(part)
    assert entry.kind == state.kind
    assert entry.shapes == {name: list(column.shape[1:]) for name, column in state.columns().items()}
    assert equal(item_state(part, type(state)), state)
    assert equal(item_state(part.slice(1, 2), type(state)), take(state, slice(1, 3)))
    assert equal(item_state(pa.concat_tables([part, part]), type(state)), concatenate([state, state]))


def test_a_single_component_is_stored_once() -> None:
    assert list(single(2).columns()) == ["components"]


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64])
def test_codes_are_stored_in_int32(dtype: torch.dtype) -> None:
    codes = torch.randint(5000, (4, 3), dtype=dtype)
    back = Codes.from_columns(Codes(codes).columns())
    assert back.codes.dtype == torch.int32
    assert back.codes.tolist() == codes.tolist()


@all_states
@given(st.lists(SIZES, min_size=1, max_size=4))
def test_parts_concatenate_to_the_whole(made: Callable[[int], AnyItems | AnyQuery], sizes: list[int]) -> None:
    state = made(sum(sizes))
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    parts = [take(state, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    assert [len(part) for part in parts] == sizes
    assert equal(concatenate(parts), state)


@all_states
@given(st.data())
def test_lines_are_taken_in_any_order_and_shape(
    made: Callable[[int], AnyItems | AnyQuery], data: st.DataObject
) -> None:
    state = made(data.draw(st.integers(1, 5)))
    rows = data.draw(st.lists(st.integers(0, len(state) - 1), max_size=6))
    taken = take(state, torch.tensor(rows, dtype=torch.int64))
    assert len(taken) == len(rows)
    assert equal(taken, take(state, rows))
    for number, row in enumerate(rows):
        assert equal(take(taken, [number]), take(state, [row]))


@item_states
def test_candidates_of_each_query_are_taken_at_once(made: Callable[[int], AnyItems]) -> None:
    state, rows = made(4), torch.tensor([[3, 0, 0], [1, 2, 3]])
    for own, taken in zip(tensors_of(state), tensors_of(take(state, rows)), strict=True):
        assert torch.equal(taken, own[rows])


@all_states
@pytest.mark.parametrize("num", [0, 1, 3])
def test_a_state_moves_as_a_whole(made: Callable[[int], AnyItems | AnyQuery], num: int) -> None:
    state = made(num)
    assert equal(to(state, "cpu"), state)
    assert {tensor.device.type for tensor in tensors_of(to(state, "meta"))} == {"meta"}
    assert equal(with_tensors(state, tensors_of(state)), state)
