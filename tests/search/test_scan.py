from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.ranking
import rails_ray.search.scan
from rails_ray.kernels.top_k import select
from rails_ray.search.masks import Exclusions
from rails_ray.search.scan import Scan, scan
from rails_ray.search.sharded import merge, of_corpus
from rails_ray.search.spec import SearchResult, SearchSpec
from support.scores import tied_scores

INFINITY = float("inf")
Drawn = tuple[torch.Tensor, torch.Tensor | None, int, int, list[list[int]]]
Asked = tuple[torch.Tensor, SearchSpec, list[list[int]]]


def searched(scores: torch.Tensor, spec: SearchSpec, size: int = 1000, prune: bool = False) -> SearchResult:
    """In blocks of a size; what the floor calls of no use does not come, if it is pruned."""
    running = Scan(spec)
    for first in range(0, scores.shape[1], size):
        block = scores[:, first : first + size].clone()
        if prune and running.floor is not None:
            block[block < running.floor[:, None]] = -torch.inf
        running.add(first, block)
    num = torch.full((len(scores),), scores.shape[1])
    return running.found(num, spec.num_left(len(scores), scores.shape[1]))


@st.composite
def drawn(draw: st.DrawFn, has_nan: bool = False) -> Drawn:
    """Tied scores, of which some may be NaN; the k best, or thresholds that many of them equal; what is excluded."""
    scores = draw(tied_scores())
    lines, width = scores.shape
    if has_nan:
        is_nan = draw(st.lists(st.booleans(), min_size=scores.numel(), max_size=scores.numel()))
        scores = scores.masked_fill(torch.tensor(is_nan, dtype=torch.bool).view(scores.shape), torch.nan)
    value = st.sampled_from([-INFINITY, -1.0, 0.0, 0.25, 0.5, 1.0, INFINITY])
    threshold = draw(st.none() | st.lists(value, min_size=lines, max_size=lines))
    k = draw(st.integers(1, width + 2))
    at_least = draw(st.integers(0, k))
    excluded = draw(st.lists(st.lists(st.integers(0, width - 1), unique=True), min_size=lines, max_size=lines))
    threshold = None if threshold is None else torch.tensor(threshold)
    return scores, threshold, k, at_least, excluded


def asked_of(drawn: Drawn) -> Asked:
    scores, threshold, k, at_least, excluded = drawn
    return scores, SearchSpec(k, threshold, at_least, Exclusions.of(excluded)), excluded


def assert_oracle(found: SearchResult, asked: Asked) -> None:
    scores, spec, excluded = asked
    longest = 0
    for line, own in enumerate(scores.tolist()):
        out = {*excluded[line], *(row for row, score in enumerate(own) if score != score)}  # NaN counts as no item
        if spec.threshold is None:
            rows, is_truncated = oracles.ranking.top_k(own, spec.k, out), len(own) - len(excluded[line]) > spec.k
            is_truncated = is_truncated and len(rows) == spec.k
        else:
            threshold = spec.threshold[line].item()
            rows, is_truncated = oracles.ranking.items_above(own, threshold, spec.k, spec.at_least, out)
        more = found.k - len(rows)
        assert found.item_rows[line].tolist() == rows + [0] * more
        assert found.scores[line].tolist() == [own[row] for row in rows] + [-INFINITY] * more
        assert found.is_truncated[line].item() == is_truncated
        longest = max(longest, len(rows))
    assert found.k == longest if spec.threshold is not None else found.k == min(spec.k, scores.shape[1])


@given(drawn(), st.integers(1, 12), st.sampled_from([1, 2, 10**6]), st.booleans())
def test_what_is_wanted_in_blocks_of_any_size(drawn: Drawn, size: int, many: int, prune: bool) -> None:
    """Also where what the floor calls of no use does not come."""
    scores, spec, excluded = asked_of(drawn)
    with patch.object(rails_ray.search.scan, "MANY", many):
        assert_oracle(searched(scores, spec, size, prune), (scores, spec, excluded))


@given(drawn(has_nan=True), st.integers(1, 12), st.sampled_from([1, 2, 10**6]))
def test_a_score_that_is_nan_is_never_answered_and_hides_no_other(drawn: Drawn, size: int, many: int) -> None:
    scores, spec, excluded = asked_of(drawn)
    with patch.object(rails_ray.search.scan, "MANY", many):
        assert_oracle(searched(scores, spec, size), (scores, spec, excluded))


@pytest.mark.parametrize(
    "spec", [SearchSpec(3), SearchSpec(3, torch.tensor([0.5])), SearchSpec(3, torch.tensor([9.0]), 3)]
)
def test_nan_beside_the_best(spec: SearchSpec) -> None:
    scores = torch.zeros(1, 96)
    scores[0, [3, 40, 41]] = torch.tensor([0.7, 0.9, 0.8])
    scores[0, [2, 39, 42, 90]] = torch.nan
    assert searched(scores, spec).item_rows.tolist() == [[40, 41, 3]]


def test_only_nan() -> None:
    for spec in (SearchSpec(2), SearchSpec(2, torch.tensor([-INFINITY])), SearchSpec(2, torch.tensor([0.0]), 1)):
        found = searched(torch.full((1, 70), torch.nan), spec)
        assert found.num_found().tolist() == [0]
        assert not found.is_truncated.any()


@given(drawn(), st.lists(st.integers(0, 12), max_size=3), st.integers(1, 12))
def test_merging_shards_gives_what_is_wanted(drawn: Drawn, cuts: list[int], size: int) -> None:
    scores, spec, excluded = asked_of(drawn)
    parts = []
    for first, end in pairwise([0, *sorted(cuts), 12]):
        own = Exclusions.of([[row - first for row in line if row >= first] for line in excluded])
        part = searched(scores[:, first:end], SearchSpec(spec.k, spec.threshold, spec.at_least, own), size)
        parts.append(of_corpus(part, first))
    found = merge(parts, spec, spec.num_left(*scores.shape))
    whole = searched(scores, spec, size)
    assert found.k == (int(whole.num_found().max()) if len(scores) else 0)
    assert torch.equal(found.scores, whole.scores[:, : found.k])
    assert torch.equal(found.item_rows, whole.item_rows[:, : found.k])
    assert torch.equal(found.is_truncated, whole.is_truncated)
    assert torch.equal(found.num_scored, whole.num_scored)


def test_many_items_above_and_a_small_k() -> None:
    """More than the groups of a block by far, and lines of which some are full early."""
    scores = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).mul(50).round().div(50)
    excluded = [[], [1, 2], []]
    spec = SearchSpec(7, torch.tensor([-INFINITY, 0.5, 3.0]), 2, Exclusions.of(excluded))
    for size in (100, 1000, 5000):
        assert_oracle(searched(scores, spec, size, prune=True), (scores, spec, excluded))


@given(tied_scores(), st.integers(1, 12), st.integers(1, 5))
def test_the_k_best_in_blocks_of_any_size_are_those_of_a_selection(scores: torch.Tensor, k: int, size: int) -> None:
    whole, parts = select(scores, k), searched(scores, SearchSpec(k), size)
    assert torch.equal(whole.item_rows, parts.item_rows)
    assert torch.equal(whole.scores, parts.scores)


def test_the_floor_of_the_k_best_is_the_kth_so_far() -> None:
    running = Scan(SearchSpec(2))
    assert running.floor is None
    running.add(0, torch.tensor([[0.1], [0.9]]))
    assert running.floor is None
    running.add(1, torch.tensor([[0.5, 0.3], [0.2, 0.4]]))
    assert running.floor.tolist() == pytest.approx([0.3, 0.4])


def test_the_floor_of_a_threshold_scan() -> None:
    running = Scan(SearchSpec(2, torch.tensor([0.5, 0.5]), at_least=1))
    assert running.floor.tolist() == [-INFINITY, -INFINITY]
    running.add(0, torch.tensor([[0.1, 0.3], [0.6, 0.7]]))
    assert running.floor.tolist() == pytest.approx([0.3, 0.5])  # two of two: a third would be left out, and be missed
    running.add(2, torch.tensor([[0.6], [0.8]]))
    assert running.floor.tolist() == pytest.approx([0.5, 0.7])
    num = torch.full((2,), 3)
    assert running.found(num, num).is_truncated.tolist() == [False, True]


@pytest.mark.parametrize(
    "spec", [SearchSpec(3), SearchSpec(3, torch.zeros(2), at_least=1), SearchSpec(3, torch.zeros(2))]
)
def test_nothing_came(spec: SearchSpec) -> None:
    nothing = scan([], spec, 2, 0)
    assert nothing.item_rows.shape == (2, 0)
    assert nothing.is_truncated.tolist() == [False, False]
    assert nothing.bound.tolist() == [-INFINITY, -INFINITY]


@pytest.mark.parametrize("spec", [SearchSpec(3), SearchSpec(3, torch.zeros(0), at_least=1)])
def test_no_query(spec: SearchSpec) -> None:
    found = searched(torch.empty(0, 70), spec)
    assert found.scores.shape == (0, 3 if spec.threshold is None else 0)


def test_exclusion_leaves_places_that_hold_no_item() -> None:
    found = searched(torch.tensor([[0.1, 0.9, 0.5]] * 2), SearchSpec(3, mask=Exclusions.of([[], [0, 2]])))
    assert found.num_found().tolist() == [3, 1]
    assert found.item_rows.tolist() == [[1, 2, 0], [1, 0, 0]]
