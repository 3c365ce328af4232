import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.data.dataset import ItemLists, Queries

LISTS = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6)


def lists_of(lists: ItemLists) -> list[list[int]]:
    return [line.tolist() for line in lists]


@given(LISTS)
def test_lists_come_back_as_they_were(lists: list[list[int]]) -> None:
    made = ItemLists.of(lists)
    assert len(made) == len(lists)
    assert lists_of(made) == lists
    assert [made[number].tolist() for number in range(len(made))] == lists
    assert made.lengths.tolist() == [len(line) for line in lists]
    assert made.rows.dtype == made.starts.dtype == np.int64


@given(LISTS.filter(bool), st.data())
def test_take_repeats_and_reorders(lists: list[list[int]], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    taken = ItemLists.of(lists).take(np.array(numbers, dtype=np.int64))
    assert lists_of(taken) == [lists[number] for number in numbers]
    first, last = data.draw(st.tuples(st.integers(0, 7), st.integers(0, 7)))
    assert lists_of(ItemLists.of(lists).take(slice(first, last))) == lists[first:last]


@pytest.mark.parametrize("number", [-1, 2])
def test_a_list_that_is_not_there(number: int) -> None:
    with pytest.raises(IndexError, match=str(number)):
        ItemLists.of([[1], []])[number]


@pytest.mark.parametrize("num_queries", [0, 2, 9])
@pytest.mark.parametrize("inputs", [["a", "b", "c"], ItemLists.of([[5], [], [6, 7]])], ids=["texts", "histories"])
@pytest.mark.parametrize("seen", [None, ItemLists.of([[3], [4, 5], []])], ids=["nothing seen", "seen"])
def test_head_keeps_the_first_queries(inputs: list[str] | ItemLists, seen: ItemLists | None, num_queries: int) -> None:
    head = Queries(inputs, ItemLists.of([[0], [1, 2], [0]]), seen).head(num_queries)
    kept = min(num_queries, 3)
    assert len(head) == len(head.inputs) == kept
    assert list(map(list, head.inputs)) == list(map(list, inputs))[:kept]
    assert lists_of(head.relevant) == [[0], [1, 2], [0]][:kept]
    assert head.seen is None if seen is None else lists_of(head.seen) == lists_of(seen)[:kept]
