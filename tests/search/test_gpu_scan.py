"""Scans without a look at the scores: they equal those that look, on the CPU, where each look is counted."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jobs.benches.gpu_measuring import Operators
from rails_ray.modules.similarities.bm25 import Bm25, TermCounts, TermWeights
from rails_ray.modules.similarities.states import Codes, Tables
from rails_ray.search import gpu_scan, scan
from rails_ray.search.gpu_scan import scan_on_gpu
from rails_ray.search.indexes.flat import FlatIndex
from rails_ray.search.indexes.lookup import LookupIndex
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods.bm25 import ByTerms
from rails_ray.search.methods.look_up import FullLookUp
from rails_ray.search.spec import SearchResult, SearchSpec
from rails_ray.search.started import finished
from support.scores import tied_scores


def assert_equal(found: SearchResult, expected: SearchResult) -> None:
    for name in ("scores", "item_rows", "bound", "is_truncated", "num_scored"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.reasons == expected.reasons


@given(tied_scores(), st.integers(1, 9), st.integers(1, 7), st.booleans(), st.booleans(), st.integers(0, 99))
def test_it_equals_the_scan_that_looks(
    scores: torch.Tensor, k: int, size: int, has_threshold: bool, has_nan: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lines, width = scores.shape
    if has_nan:
        scores = scores.masked_fill(torch.rand(scores.shape, generator=generator) < 0.2, torch.nan)
    values = torch.tensor([-torch.inf, -1.0, 0.0, 0.25, 0.5, torch.inf])
    threshold = values[torch.randint(len(values), (lines,), generator=generator)] if has_threshold else None
    mask = Exclusions.of([torch.randint(width, (2,), generator=generator).tolist() for _ in range(lines)])
    spec = SearchSpec(k, threshold, seed % (k + 1), mask if seed % 2 else None)

    def blocks() -> list[tuple[int, torch.Tensor]]:
        return [(first, scores[:, first : first + size].clone()) for first in range(0, width, size)]

    with patch.object(gpu_scan, "MOST_PARTS", 2 + seed % 3):
        found = scan_on_gpu(blocks(), spec, lines, width)
    assert_equal(found, scan.scan(blocks(), spec, lines, width))


@pytest.mark.parametrize(("lines", "width"), [(0, 5), (3, 0), (0, 0)])
@pytest.mark.parametrize("has_threshold", [False, True])
def test_no_queries_and_no_items(lines: int, width: int, has_threshold: bool) -> None:
    spec = SearchSpec(2, torch.zeros(lines) if has_threshold else None)
    blocks = [(0, torch.zeros(lines, width))] if width else []
    assert_equal(scan_on_gpu(blocks, spec, lines, width), scan.scan(blocks, spec, lines, width))


NUM_ITEMS = 3000


def as_on_gpu(search: Any, query: Any, spec: SearchSpec) -> SearchResult:
    return finished([[search.start(query, spec)]])[0]


def by_vectors() -> Callable[[SearchSpec], SearchResult]:
    return partial(FlatIndex(torch.randn(NUM_ITEMS, 8)).search, torch.randn(3, 8))


def by_codes() -> Callable[[SearchSpec], SearchResult]:
    """As product quantization searches."""
    return partial(LookupIndex(torch.randint(16, (NUM_ITEMS, 4), dtype=torch.uint8)).search, torch.randn(3, 4, 16))


def by_buckets() -> Callable[[SearchSpec], SearchResult]:
    """As SOLAR searches."""
    codes = torch.randint(16, (NUM_ITEMS, 4))
    search = FullLookUp(Codes(codes), LookupIndex(codes))
    return partial(as_on_gpu, search, Tables(torch.randn(3, 4, 16), torch.ones(3)))


def by_terms() -> Callable[[SearchSpec], SearchResult]:
    items = TermWeights(torch.randint(50, (NUM_ITEMS, 4)), torch.rand(NUM_ITEMS, 4))
    query = TermCounts(
        torch.tensor([[1, 2], [3, -1], [49, 7]]), torch.tensor([[1.0, 2], [1, 0], [3, 1]]), torch.ones(3)
    )
    return partial(as_on_gpu, ByTerms(Bm25(), items), query)


@pytest.mark.parametrize("search", [by_vectors, by_codes, by_buckets, by_terms])
def test_a_search_looks_once_at_what_it_computes(
    search: Callable[[], Callable[[SearchSpec], SearchResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    asked, looks = search(), list[int]()
    specs = SearchSpec(10), SearchSpec(10, torch.tensor([0.1, 1.0, 9.0]), at_least=2)
    expected = [asked(spec) for spec in specs]
    for module in ("rails_ray.search.indexes.flat", "rails_ray.search.indexes.lookup"):
        monkeypatch.setattr(f"{module}.scan", scan_on_gpu)
    monkeypatch.setattr("rails_ray.kernels.lookup_scan.loops_for", lambda *_: None)  # in torch, as on a GPU
    for spec, own in zip(specs, expected, strict=True):
        with Operators() as seen:
            found = asked(spec)
        looks.append(seen.num_reads)
        assert_equal(found, own)
    assert max(looks) <= 1


def test_a_query_that_is_not_finite_and_one_of_other_codes() -> None:
    codes = torch.randint(16, (50, 4))
    search, tables = FullLookUp(Codes(codes), LookupIndex(codes)), torch.randn(3, 4, 16)
    tables[1, 2, 3] = torch.nan
    with pytest.raises(ValueError, match="query tables must be finite, got NaN or infinity in query 1"):
        as_on_gpu(search, Tables(tables, torch.ones(3)), SearchSpec(5))
    with pytest.raises(ValueError, match="tables must have the 4 parts of the codes, got 3"):
        as_on_gpu(search, Tables(tables[:, :3], torch.ones(3)), SearchSpec(5))
