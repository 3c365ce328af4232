import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.search.masks import Exclusions, Mask, Remaining
from support.masks import hiding

NUM_ITEMS = 9
rows_of_queries = st.lists(st.lists(st.integers(0, NUM_ITEMS + 3), max_size=6), max_size=4)


def hidden_of(mask: Mask, num_queries: int, num_items: int = NUM_ITEMS) -> list[list[int]]:
    """By hiding, in two blocks of items."""
    left, right = torch.zeros(num_queries, 4), torch.zeros(num_queries, num_items - 4)
    scores = torch.cat([mask.hide(left), mask.hide(right, 4)], dim=1)
    return [line.isneginf().nonzero()[:, 0].tolist() for line in scores]


def assert_agrees(mask: Mask, expected: list[list[int]]) -> None:
    """All that a mask says of itself, but of its own parts."""
    num = len(expected)
    assert isinstance(mask, Mask)
    assert hidden_of(mask, num) == expected
    assert mask.num_left(num, NUM_ITEMS).tolist() == [NUM_ITEMS - len(rows) for rows in expected]
    starts, ends, rows = mask.hidden_rows(num, NUM_ITEMS)
    assert [rows[start:end].tolist() for start, end in zip(starts, ends, strict=True)] == expected
    gone = [] if mask.is_left is None else (~mask.is_left).nonzero()[:, 0].tolist()
    beside = mask.excluded.hidden_rows(num, NUM_ITEMS)
    pairs = [beside.rows[start:end].tolist() for start, end in zip(beside.starts, beside.ends, strict=True)]
    assert [sorted([*gone, *own]) for own in pairs] == expected


def assert_contract(mask: Mask, expected: list[list[int]]) -> None:
    num = len(expected)
    assert_agrees(mask, expected)
    for lines in ([], *([number] for number in range(num)), [*range(1, num)], [*range(0, num, 2)], [*range(num)]):
        own = mask.of_queries(torch.tensor(lines, dtype=torch.int64))
        assert_agrees(own, [expected[line] for line in lines])
    assert_agrees(mask.repeat_each(3), [rows for rows in expected for _ in range(3)])


@given(rows_of_queries)
def test_excluded_pairs(rows: list[list[int]]) -> None:
    """Rows beyond the items and rows that are named twice included."""
    assert_contract(Exclusions.of(rows), [sorted({row for row in own if row < NUM_ITEMS}) for own in rows])


some_items = st.lists(st.booleans(), min_size=NUM_ITEMS, max_size=NUM_ITEMS)


@given(rows_of_queries, some_items, st.integers(0, NUM_ITEMS), st.integers(0, NUM_ITEMS))
def test_pairs_among_the_items_that_remain(rows: list[list[int]], is_left: list[bool], first: int, num: int) -> None:
    """Pairs of which an item does not remain included; and the items of a segment."""
    gone = {row for row, left in enumerate(is_left) if not left}
    named = [[row for row in own if row < NUM_ITEMS] for own in rows]
    expected = [sorted(gone | set(own)) for own in named]
    mask = Remaining.of(torch.tensor(is_left), named)
    assert_contract(mask, expected)
    num = min(num, NUM_ITEMS - first)
    for own, hidden in (
        (mask, expected),
        (Exclusions.of(rows), [sorted({row for row in own if row < NUM_ITEMS}) for own in rows]),
    ):
        segment = own.of_items(first, num)
        here = [[row - first for row in line if first <= row < first + num] for line in hidden]
        scores = segment.hide(torch.zeros(len(rows), num))
        assert [line.isneginf().nonzero()[:, 0].tolist() for line in scores] == here
        assert segment.num_left(len(rows), num).tolist() == [num - len(line) for line in here]


def test_queries_that_exclude_nothing_share_hidden_rows() -> None:
    """As rows of half a million items would take a gigabyte for a batch of 256."""
    hidden = Remaining.of(torch.tensor([True, False, False, True]), [[], [3], []]).hidden_rows(3, 4)
    assert hidden.rows.tolist() == [1, 2, 1, 2, 3]
    assert hidden.starts.tolist() == [0, 2, 0]
    assert hidden.ends.tolist() == [2, 5, 2]


@given(some_items, st.integers(0, 3))
def test_a_filter_of_all_queries(is_hidden: list[bool], num_queries: int) -> None:
    rows = [row for row, hidden in enumerate(is_hidden) if hidden]
    mask = hiding(torch.tensor(is_hidden))
    assert_agrees(mask, [rows] * num_queries)
    assert_agrees(mask.repeat_each(2), [rows] * 2 * num_queries)


def test_nothing_is_excluded() -> None:
    assert Exclusions.of([]).pairs.shape == (0, 2)
    assert Exclusions.of([[], []]).num_left(2, 5).tolist() == [5, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_are_changed_in_place(dtype: torch.dtype) -> None:
    scores = torch.zeros(2, 3, dtype=dtype)
    assert Exclusions.of([[4], [5, 6]]).hide(scores, 4) is scores
    assert scores.isneginf().tolist() == [[True, False, False], [False, True, True]]
