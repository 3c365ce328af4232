"""Approximate methods over indexes that may pass over items."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import ItemState, QueryState
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.candidates import AVERAGE, FirstStage, component_name, longest_component
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.methods.approximate import Approximate, CandidateLists
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec
from support.examples import random_states, small_mixture

NUM_ITEMS, NUM_LISTS = 400, 8


@pytest.fixture(scope="module")
def items() -> ItemState:
    vectors = F.normalize(torch.randn(NUM_ITEMS, 6, generator=torch.Generator().manual_seed(0)), dim=1)
    return ItemState(vectors.unsqueeze(1), None, vectors)


@pytest.fixture
def index(items: ItemState) -> FaissIndex:
    fitted = fit(IvfConfig(nlist=NUM_LISTS), items.average, NUM_ITEMS, 0)
    return FaissIndex.read(*build(fitted, [items.average]))


def query_of(items: ItemState, *rows: int) -> QueryState:
    vectors = items.average[list(rows)]
    return QueryState(vectors.unsqueeze(1), None, torch.ones(len(rows)))


def made(items: ItemState, index: FaissIndex, width: int, nprobe: int) -> Approximate:
    first_stage = FirstStage(items, {AVERAGE: index})
    return Approximate(
        DotProduct(DotProductConfig()),
        items,
        CandidateLists(num_by_average=width),
        first_stage,
        SearchParams(nprobe=nprobe),
    )


@pytest.mark.parametrize(("threshold", "is_truncated"), [(0.0, True), (0.99999, False)])
def test_a_list_that_the_cap_cuts_says_so(
    items: ItemState, index: FaissIndex, threshold: float, is_truncated: bool
) -> None:
    found = made(items, index, 50, NUM_LISTS).search(query_of(items, 3, 4), SearchSpec(3, torch.full((2,), threshold)))
    assert found.is_truncated.tolist() == [is_truncated] * 2
    assert found.num_found().tolist() == ([3, 3] if is_truncated else [1, 1])
    assert found.item_rows[:, 0].tolist() == [3, 4]


def test_lists_that_hold_no_more_are_not_asked_for_longer(
    items: ItemState, index: FaissIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    search = FaissIndex.search

    def heard(self: FaissIndex, queries: torch.Tensor, spec: SearchSpec, params: SearchParams | None = None) -> object:
        asked.append(spec.k)
        return search(self, queries, spec, params)

    monkeypatch.setattr(FaissIndex, "search", heard)
    found = made(items, index, 200, 1).search(query_of(items, 3), SearchSpec(200))
    assert 0 < int(found.num_found()) < 200
    assert asked == [200]


@pytest.mark.parametrize("storage", ["fp32", "fp16", "sq8"])
@pytest.mark.parametrize("length", [1e-3, 1.0, 300.0])
def test_vectors_of_any_length_are_found_at_a_threshold_that_they_reach(storage: Any, length: float) -> None:
    """An index that rounds is asked for lower scores, by as much as it can be off."""
    draw = torch.Generator().manual_seed(1)
    vectors = length * torch.randn(NUM_ITEMS, 6, generator=draw)
    items = ItemState(vectors.unsqueeze(1), None, vectors)
    query = 7 * length * torch.randn(20, 6, generator=draw)
    state = QueryState(query.unsqueeze(1), None, torch.ones(20))
    similarity = DotProduct(DotProductConfig(), has_bounded_vectors=False)
    index = FaissIndex.read(*build(fit(FlatConfig(storage=storage), vectors, NUM_ITEMS, 0), [vectors]))
    first_stage = FirstStage(items, {AVERAGE: index}, longest=longest_component(items))
    assert first_stage.longest == pytest.approx(float(vectors.norm(dim=1).max()))
    scores = similarity.scores(state, items)
    threshold = scores[:, 5] - 1e-6 * first_stage.longest * query.norm(dim=1)  # two sums in float32 are that near
    found = Approximate(similarity, items, CandidateLists(num_by_average=5), first_stage).search(
        state, SearchSpec(NUM_ITEMS, threshold)
    )
    assert found.num_found().tolist() == (scores >= threshold[:, None]).sum(dim=1).tolist()


@pytest.mark.parametrize("method", ["average", "per_embedding", "combined"])
def test_an_index_that_looks_at_every_list_proves_nothing_of_what_a_short_list_leaves_out(method: str) -> None:
    """A mixture's best item may stand far down a list of cosines."""
    query, items = random_states(8, 60, seed=2)
    vectors = [items.average, *items.components.unbind(dim=1)]
    names = [AVERAGE, *map(component_name, range(items.num_components))]
    made = {
        name: FaissIndex.read(*build(fit(IvfConfig(nlist=4), own, 60, 0), [own]))
        for name, own in zip(names, vectors, strict=True)
    }
    searcher = ByComponents(small_mixture(), items, made)
    params = SearchParams(num_candidates=5, num_per_embedding=3, nprobe=4)
    found, best = (searcher.search(query, SearchSpec(3), own, params) for own in (method, "brute_force"))
    is_best = (found.item_rows == best.item_rows).all(dim=1)
    assert not is_best.all()
    gaps = found.gap(SearchSpec(3))
    assert (gaps[~is_best] > 0).all()


@pytest.mark.parametrize("storage", ["fp32", "fp16", "sq8"])
def test_a_bound_of_long_vectors_holds_in_double_precision(storage: Any) -> None:
    """Sums of large products are rounded by more than those of cosines."""
    draw = torch.Generator().manual_seed(3)
    vectors = 300 + 30 * torch.randn(NUM_ITEMS, 64, generator=draw)  # all almost alike
    items = ItemState(vectors.unsqueeze(1), None, vectors)
    query = 300 + 30 * torch.randn(40, 64, generator=draw)
    state = QueryState(query.unsqueeze(1), None, torch.ones(40))
    index = FaissIndex.read(*build(fit(FlatConfig(storage=storage), vectors, NUM_ITEMS, 0), [vectors]))
    searcher = ByComponents(DotProduct(DotProductConfig(), has_bounded_vectors=False), items, {AVERAGE: index})
    found = searcher.search(state, SearchSpec(20), "ann", SearchParams(num_candidates=25))
    exact = query.double() @ vectors.double().T
    left_out = exact.scatter(1, found.item_rows, -torch.inf)
    if storage == "fp32":  # a scan: the list is exact but for its own rounding
        assert (left_out.amax(dim=1) <= exact.gather(1, found.item_rows).amin(dim=1) * (1 + 1e-5)).all()
    else:
        candidates = searcher.first_stage.by_average(state, 25).item_rows
        assert (left_out.scatter(1, candidates, -torch.inf).amax(dim=1) <= found.bound.double()).all()
    slack = Approximate(searcher.scorer, items, CandidateLists(num_by_average=5), searcher.first_stage)._slack(state)
    assert (slack > 1e-6 * query.norm(dim=1) * vectors.norm(dim=1).max()).all()
