"""When items are gathered, and when the others are hidden."""

import itertools
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import ItemState, QueryState
from rails_ray.schema.search_params import DEFAULT_PARAMS, SearchParams
from rails_ray.search.candidates import AVERAGE
from rails_ray.search.gathering import Gathering
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.hnsw import HnswConfig, HnswSearch
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.masks import Exclusions, Remaining
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.methods.on_gpu import GpuScan
from rails_ray.search.searcher import ByComponents
from rails_ray.search.segmented import Segmented
from rails_ray.search.selected import Selected
from rails_ray.search.spec import SearchSpec
from support.examples import random_states, small_mixture
from support.faiss_indexes import opened, vectors

NUM_ITEMS = 4000
ITEMS = vectors(NUM_ITEMS)


def largest(num_items: int, is_gathered: Callable[[int], bool]) -> float:
    """The share of the items from which on they are not gathered."""
    return bisect_left(range(num_items + 1), True, key=lambda num: not is_gathered(num)) / num_items


def share_of(searcher: ByComponents, method: str, num_queries: int, params: SearchParams = DEFAULT_PARAMS) -> float:
    return largest(NUM_ITEMS, lambda num: searcher.gathers(num, num_queries, method, params))


def of_vectors(config: IndexConfig | None = None) -> ByComponents:
    items = ItemState(ITEMS[:, None], None, ITEMS)
    indexes = {} if config is None else {AVERAGE: opened(config, ITEMS)}
    return ByComponents(DotProduct(DotProductConfig()), items, indexes)


def of_mixture() -> ByComponents:
    return ByComponents(small_mixture(), random_states(1, NUM_ITEMS)[1])


def test_a_scan_by_products_gathers_more_for_more_queries() -> None:
    """As they share what is gathered: half of all items for 32, and not for one."""
    shares = [share_of(of_vectors(), "brute_force", num) for num in (1, 2, 8, 32, 1024)]
    assert shares == sorted(shares)
    assert 0.2 < shares[0] < 0.5 < 0.85 < shares[-2] < shares[-1] < 1
    assert share_of(of_vectors(), "ann", 32) == shares[-2]  # without an index it is a scan


def test_a_scan_by_a_mixture_gathers_most() -> None:
    assert share_of(of_mixture(), "brute_force", 1) >= 0.5
    assert share_of(of_mixture(), "brute_force", 32) == pytest.approx(0.75, abs=0.001)


def test_a_method_that_scores_few_items_gathers_fewer() -> None:
    """All scores of many items take longer than a scan by one product, and some scores."""
    few, many = (SearchParams(num_candidates=num) for num in (10, 500))
    share = share_of(of_mixture(), "average", 1, few)
    assert share < 0.2 < share_of(of_mixture(), "average", 1, many) < share_of(of_mixture(), "brute_force", 1)


def test_a_graph_gathers_more_the_wider_its_beam_and_the_fewer_its_items() -> None:
    """By the number of its nodes alone, as a million are not built here."""
    searcher = of_vectors(HnswConfig(M=4, ef_construction=10))
    graph, shares = searcher.first_stage.indexes[AVERAGE], dict[tuple[int, int, int], float]()
    assert isinstance(graph, FaissIndex)
    assert isinstance(graph.kind, HnswSearch)
    for num_items, num_queries, beam in itertools.product((1_000_000, 100_000_000), (1, 32), (64, 256)):
        graph.kind.index = SimpleNamespace(ntotal=num_items)
        gathering, params = Gathering(num_items, (1, 1), searcher.first_stage), SearchParams(ef_search=beam)
        is_faster = partial(gathering.is_faster, num_queries=num_queries, method="ann", params=params)
        shares[num_items, num_queries, beam] = largest(num_items, is_faster)
    assert 0.03 < shares[1_000_000, 1, 64] < 0.1
    for (num_items, num_queries, beam), share in shares.items():
        assert num_queries == 32 or share < shares[num_items, 32, beam]
        assert num_items > 1_000_000 or share < shares[1_000_000, num_queries, 256] or beam == 256
        assert beam == 256 or share <= shares[num_items, num_queries, 256]
        assert num_items == 1_000_000 or share < shares[1_000_000, num_queries, beam]


def test_lists_that_pass_over_most_items_gather_few() -> None:
    """And fewer the fewer lists they look at."""
    own = of_vectors(IvfConfig(nlist=100))
    assert share_of(own, "ann", 1, SearchParams(nprobe=1)) < share_of(own, "ann", 1) < share_of(own, "brute_force", 1)
    assert share_of(own, "ann", 32, SearchParams(nprobe=100)) > 0.8
    assert share_of(of_vectors(FlatConfig(storage="sq8")), "ann", 1) < share_of(own, "brute_force", 1)


def test_segments_gather_as_the_base_does() -> None:
    base = of_vectors()
    items = ItemState(ITEMS[:100, None], None, ITEMS[:100])
    both = Segmented([base, ByComponents(DotProduct(DotProductConfig()), items)])
    for num_queries in (1, 32):
        for step in (1, 25, 35, 50, 90, 99):
            assert both.gathers(4100 * step // 100, num_queries) == base.gathers(4000 * step // 100, num_queries)


def test_a_gpu_scores_half_of_the_items_by_a_list_of_rows() -> None:
    """And a twentieth where their states must be copied; whatever the queries and the method."""
    searcher = of_mixture()

    def fast(query: QueryState, items: ItemState, rows: Tensor | None) -> Tensor:
        return searcher.scorer.scores(query, items if rows is None else items.taken(rows))

    for scores, share in ((fast, 0.5), (None, 0.05)):
        searcher.exact = GpuScan(searcher.brute_force, scores)
        assert share_of(searcher, "brute_force", 1) == pytest.approx(share, abs=0.001)
        assert share_of(searcher, "average", 32) == pytest.approx(share, abs=0.001)
        rows = torch.arange(0, NUM_ITEMS, 7)
        query, spec = random_states(3, 1)[0], SearchSpec(9)
        found, expected = searcher.some(rows), BruteForce(searcher.scorer, Selected(searcher.items, rows))
        assert isinstance(found, GpuScan)
        assert torch.equal(found.search(query, spec).item_rows, expected.search(query, spec).item_rows)


def test_no_query_is_no_error() -> None:
    assert of_vectors().gathers(10, 0)


@pytest.mark.parametrize("kind", ["product", "mixture"])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.01])
def test_both_ways_find_the_same(kind: str, share: float) -> None:
    """With thresholds too."""
    is_left = torch.rand(NUM_ITEMS, generator=torch.Generator().manual_seed(4)) < share
    searcher, query = of_mixture(), random_states(5, 1)[0]
    if kind == "product":
        searcher, query = of_vectors(), QueryState(vectors(5, seed=9)[:, None], None, torch.ones(5))
    rows = is_left.nonzero()[:, 0]
    for k, threshold in ((7, None), (50, torch.full((5,), 0.3))):
        spec = SearchSpec(k, threshold, mask=Remaining(is_left, Exclusions.of([])))
        hidden, gathered = searcher.search(query, spec), searcher.some(rows).search(query, replace(spec, mask=None))
        assert hidden.num_found().tolist() == gathered.num_found().tolist()
        assert hidden.is_truncated.tolist() == gathered.is_truncated.tolist()
        is_there = hidden.scores > -torch.inf
        assert torch.equal(hidden.item_rows[is_there], rows[gathered.item_rows[is_there]])
        torch.testing.assert_close(hidden.scores[is_there], gathered.scores[is_there])
