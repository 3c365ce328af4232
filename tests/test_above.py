from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from rails_ray import above
from rails_ray.above import Above, ScanAbove, check_above, merge_above
from rails_ray.top_k import Exclusions, TopK
from support.scores import tied_scores

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
    with patch.object(above, "GROUP", group):
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
