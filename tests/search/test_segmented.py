"""A shard in segments answers as one searcher of all items does."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rails_ray import stopwatch
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.modules.similarities.states import AnyItems, map_tensors
from rails_ray.search import started
from rails_ray.search.masks import Exclusions, Remaining
from rails_ray.search.methods.bm25 import ByTerms
from rails_ray.search.methods.look_up import FullLookUp
from rails_ray.search.methods.on_gpu import GpuScan
from rails_ray.search.searcher import Searcher
from rails_ray.search.segmented import Segmented
from rails_ray.search.spec import SearchResult, SearchSpec, nothing
from support.retrievers import NUM_ITEMS, NUM_QUERIES, Named, each, exact_case, widths_of
from support.tried import tried

cuts = st.lists(st.integers(1, NUM_ITEMS - 1), max_size=3, unique=True).map(sorted)
remaining = st.lists(st.booleans(), min_size=NUM_ITEMS, max_size=NUM_ITEMS)
exact_methods = each(
    [
        *(("components", method) for method in ("brute_force", "two_pass")),
        *((kind, "brute_force") for kind in ("quantized", "codes", "terms")),
    ]
)


def in_segments(searchable_of: Callable[[AnyItems], Searcher[Any]], items: AnyItems, at: list[int]) -> Any:
    """Items that are cut at some rows."""
    blocks = [slice(first, end) for first, end in zip([0, *at], [*at, len(items)], strict=True)]
    return Segmented([searchable_of(map_tensors(lambda own, block=block: own[block], items)) for block in blocks])


@exact_methods
@tried(30)
@given(
    at=cuts,
    is_left=remaining,
    rows=st.lists(st.lists(st.integers(0, NUM_ITEMS - 1), max_size=4), min_size=NUM_QUERIES, max_size=NUM_QUERIES),
    k=st.integers(1, NUM_ITEMS + 3),
    above=st.none() | st.integers(0, NUM_ITEMS - 1),
)
def test_exact_lists_are_those_of_one_searcher(
    named: Named, at: list[int], is_left: list[bool], rows: list[list[int]], k: int, above: int | None
) -> None:
    """Ties, thresholds that equal a score, hidden items and pairs included, also where a segment has no item left."""
    searchable_of, items, query, scores = exact_case(named, NUM_QUERIES, NUM_ITEMS, 0)
    whole, parts = searchable_of(items), in_segments(searchable_of, items, at)
    assert isinstance(parts, Searcher)
    assert (parts.methods, len(parts)) == (whole.methods, len(whole))
    threshold = None if above is None else torch.tensor([line[above] for line in scores])
    spec = SearchSpec(k, threshold, mask=Remaining.of(torch.tensor(is_left), rows))
    params = widths_of(NUM_ITEMS, NUM_ITEMS)
    found, expected = (searcher.search(query, spec, named[1], params) for searcher in (parts, whole))
    for name in ("num_found", "gap"):
        own, wanted = (getattr(one, name) for one in (found, expected))
        assert torch.equal(*(one(spec) if name == "gap" else one() for one in (own, wanted)))
    for line, num in enumerate(found.num_found().tolist()):
        assert found.item_rows[line, :num].tolist() == expected.item_rows[line, :num].tolist()
        assert found.scores[line, :num].tolist() == expected.scores[line, :num].tolist()
    assert torch.equal(found.is_truncated, expected.is_truncated)
    assert parts.retriever(named[1], params).is_exact


@given(cuts, remaining)
def test_the_softmax_adds_up(at: list[int], is_left: list[bool]) -> None:
    searchable_of, items, query, _ = exact_case(("components", "brute_force"), NUM_QUERIES, NUM_ITEMS, 0)
    mask = Remaining.of(torch.tensor(is_left), [[]] * NUM_QUERIES)
    both = searchable_of(items), in_segments(searchable_of, items, at)
    torch.testing.assert_close(*(searcher.log_sum_exp(query, beta_logit, mask) for searcher in both))


@each([(kind, "brute_force") for kind in ("components", "quantized", "codes")])
@tried(30)
@given(cuts, st.sets(st.integers(0, NUM_ITEMS - 1), min_size=1), st.integers(0, NUM_ITEMS - 1))
def test_some_items_of_all_segments(named: Named, at: list[int], some: set[int], excluded: int) -> None:
    searchable_of, items, query, _ = exact_case(named, NUM_QUERIES, NUM_ITEMS, 0)
    both, rows = (searchable_of(items), in_segments(searchable_of, items, at)), torch.tensor(sorted(some))
    mask = Exclusions.of([[excluded % len(rows)], [], []])
    expected, found = (searcher.some(rows).search(query, SearchSpec(7, mask=mask)) for searcher in both)
    for line, num in enumerate(expected.num_found().tolist()):
        assert found.item_rows[line, :num].tolist() == expected.item_rows[line, :num].tolist()
    assert torch.equal(found.num_found(), expected.num_found())
    torch.testing.assert_close(*(searcher.some(rows).log_sum_exp(query, beta_logit, mask) for searcher in both))


@each([(kind, "brute_force") for kind in ("components", "quantized", "codes", "terms")])
@tried(30)
@given(cuts, st.sets(st.integers(0, NUM_ITEMS - 1), min_size=1), st.booleans())
def test_scans_of_a_gpu_are_started_together(named: Named, at: list[int], some: set[int], has_threshold: bool) -> None:
    """All segments', of all their items and of some."""
    searchable_of, items, query, scores = exact_case(named, NUM_QUERIES, NUM_ITEMS, 0)
    whole, parts = searchable_of(items), in_segments(searchable_of, items, at)
    for segment in parts.segments:
        if named[0] in ("components", "quantized"):
            own = getattr(segment, "by_components", segment)
            own.exact = GpuScan(own.brute_force, None)
    rows = torch.tensor(sorted(some))
    threshold = torch.tensor([line[0] for line in scores]) if has_threshold else None
    spec = SearchSpec(7, threshold, mask=Exclusions.of([[0], [], []]))
    pairs = [(parts, whole), *([] if named[0] == "terms" else [(parts.some(rows), whole.some(rows))])]
    for own, expected in pairs:
        with (
            patch.object(FullLookUp, "begin", begin_here),
            patch.object(ByTerms, "begin", begin_here),
            patch.object(started, "finished", wraps=started.finished) as together,
        ):
            found = own.search(query, spec)
        assert [len(call.args[0]) for call in together.call_args_list] == [len(own.first_rows)]
        wanted = expected.search(query, spec)
        assert torch.equal(found.num_found(), wanted.num_found())
        for line, num in enumerate(wanted.num_found().tolist()):
            assert found.item_rows[line, :num].tolist() == wanted.item_rows[line, :num].tolist()
            torch.testing.assert_close(found.scores[line, :num], wanted.scores[line, :num])


def test_the_time_of_candidates_is_not_that_of_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: clock[0])

    class Approximate:
        is_exact = False

        def search(self, query: Any, spec: SearchSpec) -> SearchResult:
            clock[0] += 10
            with stopwatch.part("score"):
                clock[0] += 1
            return nothing(1)

    with stopwatch.noted() as seconds:
        started.search_each([Approximate(), Approximate()], None, [SearchSpec(3)] * 2)
    assert seconds["score"] == 2


def begin_here(self: FullLookUp | ByTerms, query: Any, spec: SearchSpec) -> list[started.Started]:
    """As on a GPU."""
    return [self.start(query, spec)]


@given(cuts, st.permutations(range(NUM_ITEMS)), st.integers(0, NUM_ITEMS))
def test_explanations_come_in_the_order_of_the_rows(at: list[int], order: list[int], num: int) -> None:
    searchable_of, items, query, _ = exact_case(("components", "brute_force"), NUM_QUERIES, NUM_ITEMS, 0)
    both = searchable_of(items), in_segments(searchable_of, items, at)
    for own, expected in zip(*(searcher.explain(query, order[:num]) for searcher in both), strict=True):
        torch.testing.assert_close(own, expected)
