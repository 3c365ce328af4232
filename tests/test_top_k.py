import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from rails_ray.top_k import (
    Exclusions,
    Scan,
    TopK,
    check_k,
    distinct,
    merge,
    scan,
    select,
)
from support.scores import tied_scores


@given(tied_scores(), st.integers(1, 12))
def test_select_orders_by_score_then_row(scores: torch.Tensor, k: int) -> None:
    found = select(scores, k)
    for line, rows, best in zip(scores.tolist(), found.item_rows.tolist(), found.scores.tolist(), strict=True):
        assert rows == oracles.top_k(line, k)
        assert best == [line[row] for row in rows]


@given(tied_scores(), st.integers(1, 12), st.integers(1, 5))
def test_scan_in_blocks_of_any_size_equals_select(scores: torch.Tensor, k: int, size: int) -> None:
    blocks = [(first, scores[:, first : first + size].clone()) for first in range(0, scores.shape[1], size)]
    whole, parts = select(scores, k), scan(blocks, k)
    assert torch.equal(whole.item_rows, parts.item_rows)
    assert torch.equal(whole.scores, parts.scores)


@given(tied_scores(), st.integers(1, 12), st.permutations(range(12)))
def test_select_of_columns_in_any_order(scores: torch.Tensor, k: int, order: list[int]) -> None:
    order = [row for row in order if row < scores.shape[1]]
    rows = torch.tensor(order).expand(len(scores), -1)
    assert torch.equal(select(scores[:, order], k, rows).item_rows, select(scores, k).item_rows)


@given(tied_scores(), st.data())
def test_excluded_items_never_come_up(scores: torch.Tensor, data: st.DataObject) -> None:
    width = scores.shape[1]
    excluded = [data.draw(st.lists(st.integers(0, width - 1), max_size=width - 1, unique=True)) for _ in scores]
    k = width - max(len(rows) for rows in excluded)
    blocks = [(first, scores[:, first : first + 3].clone()) for first in range(0, width, 3)]
    found = scan(blocks, k, Exclusions.of(excluded)).exactly_k()
    for line, rows, out in zip(scores.tolist(), found.item_rows.tolist(), excluded, strict=True):
        assert rows == oracles.top_k(line, k, out)


def test_exactly_k_refuses_what_exclusion_left_short() -> None:
    found = scan([(0, torch.zeros(2, 3))], 3, Exclusions.of([[], [0, 2]]))
    assert found.num_found().tolist() == [3, 1]
    with pytest.raises(ValueError, match="k must be at most the 1 items left after exclusion, got 3"):
        found.exactly_k()


def test_merge_of_disjoint_parts() -> None:
    left = TopK(torch.tensor([[0.9, 0.1]]), torch.tensor([[3, 0]]))
    right = TopK(torch.tensor([[0.9, 0.5]]), torch.tensor([[7, 5]]))
    assert merge([right, left], 3).item_rows.tolist() == [[3, 7, 5]]


def test_no_query_and_no_excluded_pair() -> None:
    assert select(torch.empty(0, 4), 2).item_rows.shape == (0, 2)
    assert Exclusions.of([]).pairs.shape == (0, 2)


@pytest.mark.parametrize(("k", "message"), [(0, "at least 1, got 0"), (6, "at most the 5 indexed items, got 6")])
def test_k_outside_the_corpus(k: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"k must be {message}"):
        check_k(k, 5)


def test_scan_of_nothing() -> None:
    with pytest.raises(ValueError, match="a scan needs at least 1 item, got none"):
        scan([], 1)


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=7, max_size=7), min_size=1, max_size=4))
def test_distinct_rows(lines: list[list[tuple[int, bool]]]) -> None:
    rows = torch.tensor([[row for row, _ in line] for line in lines], dtype=torch.int64).reshape(-1, 7)
    is_there = torch.tensor([[there for _, there in line] for line in lines], dtype=torch.bool).reshape(-1, 7)
    once, has = distinct(rows, is_there)
    expected = [sorted({row for row, there in line if there}) for line in lines]
    assert [line[own].tolist() for line, own in zip(once, has, strict=True)] == expected
    assert once.shape[1] == max(map(len, expected), default=0)


def test_exclusions_of_queries_that_stand_several_times() -> None:
    exclusions = Exclusions.of([[4], [], [5, 6]]).repeat_each(2)
    assert sorted(exclusions.pairs.tolist()) == [[0, 4], [1, 4], [4, 5], [4, 6], [5, 5], [5, 6]]


def test_the_floor_of_a_scan_is_the_kth_best_so_far() -> None:
    running = Scan(2)
    assert running.floor is None
    running.add(0, torch.tensor([[0.1], [0.9]]))
    assert running.floor is None
    running.add(1, torch.tensor([[0.5, 0.3], [0.2, 0.4]]))
    assert running.floor.tolist() == pytest.approx([0.3, 0.4])
