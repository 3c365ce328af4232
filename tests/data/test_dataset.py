import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.data.dataset import Texts
from rails_ray.data.queries import DenseRows, Inputs, ItemLists, Queries, SparseRows

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
@pytest.mark.parametrize(
    "inputs", [Texts(["a", "b", "c"]), ItemLists.of([[5], [], [6, 7]])], ids=["texts", "histories"]
)
@pytest.mark.parametrize("seen", [None, ItemLists.of([[3], [4, 5], []])], ids=["nothing seen", "seen"])
def test_head_keeps_the_first_queries(inputs: Inputs, seen: ItemLists | None, num_queries: int) -> None:
    head = Queries(inputs, ItemLists.of([[0], [1, 2], [0]]), seen).head(num_queries)
    kept = min(num_queries, 3)
    assert len(head) == len(head.inputs) == kept
    assert list(map(list, head.inputs)) == list(map(list, inputs))[:kept]
    assert lists_of(head.relevant) == [[0], [1, 2], [0]][:kept]
    assert head.seen is None if seen is None else lists_of(head.seen) == lists_of(seen)[:kept]


@given(LISTS, st.permutations(range(10)), st.integers(-1, 9))
def test_renamed_and_without_equal_the_naive_loops(lists: list[list[int]], rows: list[int], row: int) -> None:
    made = ItemLists.of(lists)
    renamed = made.renamed(np.array(rows))
    assert lists_of(renamed) == [[rows[item] for item in line] for line in lists]
    without = made.without(row)
    assert lists_of(without) == [[item for item in line if item != row] for line in lists]
    assert lists_of(made) == lists, "the lists themselves stay as they were"
    for changed in (renamed, without):
        assert len(changed) == len(lists)
        assert changed.rows.dtype == changed.starts.dtype == np.int64


@given(LISTS, st.data())
def test_queries_in_another_corpus_equal_the_naive_loops(relevant: list[list[int]], data: st.DataObject) -> None:
    """Ten items, of which another corpus has some, in another order, and perhaps items of its own."""
    num_items = data.draw(st.integers(0, 12))
    kept = data.draw(st.lists(st.integers(0, 9), unique=True, max_size=num_items))
    places = data.draw(st.permutations(range(num_items)))
    row_of = dict(zip(kept, places, strict=False))
    same_number = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=len(relevant), max_size=len(relevant))
    histories, seen = data.draw(same_number), data.draw(st.none() | same_number)
    texts = Texts(f"query {number}" for number in range(len(relevant)))
    rows = np.array([row_of.get(item, -1) for item in range(10)])

    for inputs in (texts, ItemLists.of(histories)):
        queries = Queries(inputs, ItemLists.of(relevant), None if seen is None else ItemLists.of(seen))
        asked = queries.in_corpus(rows, num_items)
        assert len(asked) == len(relevant)
        assert lists_of(asked.relevant) == [[row_of.get(item, num_items) for item in line] for line in relevant]
        if isinstance(inputs, ItemLists):
            assert isinstance(asked.inputs, ItemLists)
            assert lists_of(asked.inputs) == [[row_of[item] for item in line if item in row_of] for line in histories]
        else:
            assert asked.inputs == texts
        if seen is None:
            assert asked.seen is None
        else:
            assert asked.seen is not None
            assert lists_of(asked.seen) == [[row_of[item] for item in line if item in row_of] for line in seen]


@given(LISTS, st.lists(st.integers(0, 9), unique=True, max_size=10), st.data())
def test_queries_among_some_items_equal_the_naive_loops(
    relevant: list[list[int]], left: list[int], data: st.DataObject
) -> None:
    """There are ten items, and 10 stands for one that the corpus lacks. Histories do not change."""
    same_number = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=len(relevant), max_size=len(relevant))
    histories, seen = data.draw(same_number), data.draw(same_number)
    lacking = data.draw(st.lists(st.booleans(), min_size=len(relevant), max_size=len(relevant)))
    relevant = [[*line, 10] if lacks else line for line, lacks in zip(relevant, lacking, strict=True)]
    row_of = {item: row for row, item in enumerate(sorted(left))} | {10: len(left)}
    queries = Queries(ItemLists.of(histories), ItemLists.of(relevant), ItemLists.of(seen))
    asked = queries.among(np.array(sorted(left), np.int64), 10)
    kept = [number for number, line in enumerate(relevant) if any(item in row_of for item in line)]
    assert isinstance(asked.inputs, ItemLists)
    assert asked.seen is not None
    assert lists_of(asked.inputs) == [histories[number] for number in kept]
    for found, lists in ((asked.relevant, relevant), (asked.seen, seen)):
        assert lists_of(found) == [[row_of[item] for item in lists[number] if item in row_of] for number in kept]


@given(LISTS)
def test_queries_in_their_own_corpus_are_the_same(lists: list[list[int]]) -> None:
    queries = Queries(ItemLists.of(lists), ItemLists.of(lists), ItemLists.of(lists))
    asked = queries.in_corpus(np.arange(10), 10)
    for before, after in (
        (queries.inputs, asked.inputs),
        (queries.relevant, asked.relevant),
        (queries.seen, asked.seen),
    ):
        assert lists_of(after) == lists_of(before)


SPARSE = SparseRows(np.array([0, 2, 2, 3]), np.array([0, 4, 2]), np.array([1.0, 0.5, 2.0], dtype=np.float32), 6)
ALL_INPUTS = {
    "texts": Texts(["a", "b", "c"]),
    "histories": ItemLists.of([[5], [], [6, 7]]),
    "features": SPARSE,
    "vectors": DenseRows(np.arange(6, dtype=np.float32).reshape(3, 2)),
}


def told(inputs: Inputs) -> list[str]:
    """What each query asks, as text."""
    return [repr(inputs[number]) for number in range(len(inputs))]


@pytest.mark.parametrize("inputs", ALL_INPUTS.values(), ids=ALL_INPUTS)
@given(st.lists(st.integers(0, 2), max_size=5), st.slices(3).filter(lambda rows: rows.step in (None, 1)))
def test_inputs_are_taken_in_any_order(inputs: Inputs, numbers: list[int], rows: slice) -> None:
    assert isinstance(inputs, Inputs)
    taken = inputs.take(np.array(numbers, dtype=np.int64))
    assert isinstance(taken, type(inputs))
    assert told(taken) == [told(inputs)[number] for number in numbers]
    assert told(inputs.take(rows)) == told(inputs)[rows]
    assert (taken.digest() == inputs.digest()) == (numbers == [0, 1, 2])


@pytest.mark.parametrize("inputs", ALL_INPUTS.values(), ids=ALL_INPUTS)
def test_only_inputs_of_items_change_with_the_corpus(inputs: Inputs) -> None:
    asked = inputs.in_corpus(np.array([0, 1, 2, 3, 4, 9, -1, 8]))
    if isinstance(inputs, ItemLists):
        assert lists_of(asked) == [[9], [], [8]]
    else:
        assert asked is inputs
