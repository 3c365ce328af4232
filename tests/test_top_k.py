from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from rails_ray import top_k
from rails_ray.top_k import (
    Above,
    Exclusions,
    Scan,
    ScanAbove,
    TopK,
    check_above,
    check_k,
    distinct,
    merge,
    merge_above,
    scan,
    select,
)


@st.composite
def tied_scores(draw: st.DrawFn) -> torch.Tensor:
    """Scores with many ties: the hard case of a deterministic order."""
    lines = draw(st.integers(1, 4))
    width = draw(st.integers(1, 12))
    value = st.sampled_from([-1.0, 0.0, 0.5, 0.5, 1.0])
    return torch.tensor(draw(st.lists(st.lists(value, min_size=width, max_size=width), min_size=lines, max_size=lines)))


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


INFINITY = float("inf")
Asked = tuple[torch.Tensor, torch.Tensor, int, int, list[list[int]]]


@st.composite
def asked_above(draw: st.DrawFn) -> Asked:
    """Tied scores, thresholds that many of them equal, a cap, the least number of items, and what is excluded."""
    scores = draw(tied_scores())
    lines, width = scores.shape
    value = st.sampled_from([-INFINITY, -1.0, 0.0, 0.25, 0.5, 1.0, INFINITY])
    threshold = torch.tensor(draw(st.lists(value, min_size=lines, max_size=lines)))
    cap = draw(st.integers(1, width + 2))
    excluded = draw(st.lists(st.lists(st.integers(0, width - 1), unique=True), min_size=lines, max_size=lines))
    return scores, threshold, cap, draw(st.integers(0, cap)), excluded


def above_in_blocks(asked: Asked, size: int, columns: slice = slice(None), prune: bool = False) -> Above:
    scores, threshold, cap, at_least, excluded = asked
    first_row = columns.start or 0
    rows = [[row - first_row for row in line if row >= first_row] for line in excluded]
    running = ScanAbove(threshold, cap, at_least, Exclusions.of(rows))
    own = scores[:, columns].clone()
    for first in range(0, own.shape[1], size):
        block = own[:, first : first + size]
        is_of_use = block >= running.floor[:, None] if prune else torch.ones_like(block, dtype=torch.bool)
        running.add(first, block.masked_fill(~is_of_use, -torch.inf))
    found = running.above()
    is_there = found.top_k.scores > -torch.inf
    return Above(TopK(found.top_k.scores, found.top_k.item_rows + first_row * is_there), found.is_truncated)


def assert_oracle(found: Above, asked: Asked) -> None:
    scores, threshold, cap, at_least, excluded = asked
    longest = 0
    for line, own in enumerate(scores.tolist()):
        rows, is_truncated = oracles.items_above(own, threshold[line].item(), cap, at_least, excluded[line])
        more = found.top_k.k - len(rows)
        assert found.top_k.item_rows[line].tolist() == rows + [0] * more
        assert found.top_k.scores[line].tolist() == [own[row] for row in rows] + [-INFINITY] * more
        assert found.is_truncated[line].item() == is_truncated
        longest = max(longest, len(rows))
    assert found.top_k.k == longest


@given(asked_above(), st.integers(1, 12), st.sampled_from([1, 2, 3, 64]), st.booleans())
def test_all_items_above_a_threshold_in_blocks_of_any_size(asked: Asked, size: int, group: int, prune: bool) -> None:
    """Also where what the floor calls of no use does not come."""
    with patch.object(top_k, "GROUP", group):
        assert_oracle(above_in_blocks(asked, size, prune=prune), asked)


@given(asked_above(), st.lists(st.integers(0, 12), max_size=3), st.integers(1, 12), st.randoms())
def test_merging_shards_gives_all_items_above(asked: Asked, cuts: list[int], size: int, random) -> None:
    edges = [0, *sorted(cuts), 12]
    parts = [above_in_blocks(asked, size, slice(*edge)) for edge in pairwise(edges)]
    random.shuffle(parts)
    _, threshold, cap, at_least, _ = asked
    assert_oracle(merge_above(parts, threshold, cap, at_least), asked)


def test_many_items_above_and_a_small_cap() -> None:
    """More than the groups of a block by far, and lines of which some are full early."""
    scores = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).mul(50).round().div(50)
    asked = scores, torch.tensor([-INFINITY, 0.5, 3.0]), 7, 2, [[], [1, 2], []]
    for size in (100, 1000, 5000):
        assert_oracle(above_in_blocks(asked, size, prune=True), asked)


def test_the_floor_of_a_threshold_scan() -> None:
    running = ScanAbove(torch.tensor([0.5, 0.5]), cap=2, at_least=1)
    assert running.floor.tolist() == [-INFINITY, -INFINITY]
    running.add(0, torch.tensor([[0.1, 0.3], [0.6, 0.7]]))
    assert running.floor.tolist() == pytest.approx([0.3, 0.5])  # two of two: a third would be left out, and be missed
    running.add(2, torch.tensor([[0.6], [0.8]]))
    assert running.floor.tolist() == pytest.approx([0.5, 0.7])
    assert running.above().is_truncated.tolist() == [False, True]


def test_nothing_came_and_no_query() -> None:
    nothing = ScanAbove(torch.zeros(2), 3, at_least=1).above()
    assert nothing.top_k.item_rows.shape == (2, 0)
    assert nothing.is_truncated.tolist() == [False, False]
    running = ScanAbove(torch.zeros(0), 3, at_least=1)
    running.add(0, torch.empty(0, 70))
    assert running.above().top_k.scores.shape == (0, 0)


@pytest.mark.parametrize(
    ("threshold", "cap", "at_least", "message"),
    [
        ([0.0, -1.0, float("nan")], 5, 0, "threshold must not be NaN, got NaN for query 2"),
        ([0.0, 0.0], 5, 0, "threshold must be one number for each of 3 queries, got 2"),
        ([0.0] * 3, 0, 0, "cap must be at least 1, got 0"),
        ([0.0] * 3, 5, 6, "at_least must be at least 0 and at most the cap of 5, got 6"),
        ([0.0] * 3, 5, -1, "at_least must be at least 0 and at most the cap of 5, got -1"),
    ],
)
def test_a_threshold_search_that_cannot_be(threshold: list[float], cap: int, at_least: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_above(3, torch.tensor(threshold), cap, at_least)
