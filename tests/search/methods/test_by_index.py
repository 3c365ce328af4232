"""The method `ann`: lists of an index, and how many candidates it takes."""

import faiss
import numpy as np
import pytest
import torch

from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import ItemState, QueryState
from rails_ray.schema.search_params import NUM_CANDIDATES, SearchParams
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.hnsw import EF_SEARCH, HnswConfig
from rails_ray.search.methods.by_index import SPARE
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec
from support.faiss_indexes import KINDS, STORAGES, built, kinds, opened, vectors

NUM = 600


def searcher(config: IndexConfig | None) -> ByComponents:
    own = vectors(NUM)
    indexes = None if config is None else {"average": opened(config, own)}
    similarity = DotProduct(DotProductConfig(), has_bounded_vectors=False)
    return ByComponents(similarity, ItemState(own[:, None], None, own), indexes)


def queries(num: int = 9) -> QueryState:
    return QueryState(vectors(num, seed=1)[:, None], None, torch.ones(num))


@pytest.mark.parametrize("config", [None, *(config for name, config in KINDS.items() if name.endswith("fp32"))])
def test_an_index_of_float32_is_the_answer(config: IndexConfig | None) -> None:
    own, query, params = searcher(config), queries(), SearchParams(nprobe=6, ef_search=NUM)
    found = own.search(query, SearchSpec(10), "ann", params)
    scores = query.vectors() @ own.items.taken(slice(None)).components[:, 0].T
    assert torch.allclose(found.scores, scores.gather(1, found.item_rows), atol=1e-6)
    if config is None or config.kind != "hnsw":
        assert torch.equal(found.item_rows, own.search(query, SearchSpec(10)).item_rows)
    assert int(found.num_scored.max()) <= NUM


@pytest.mark.parametrize("storage", STORAGES[1:])
def test_an_index_that_rounds_gives_a_few_candidates_for_each_item(storage: str) -> None:
    own, query = searcher(KINDS[f"flat {storage}"]), queries()
    assert own.search(query, SearchSpec(7), "ann").num_scored.tolist() == [SPARE * 7] * 9
    more = own.search(query, SearchSpec(7), "ann", SearchParams(num_candidates=50))
    assert more.num_scored.tolist() == [50] * 9
    assert torch.equal(more.item_rows, own.search(query, SearchSpec(7)).item_rows)


def test_candidates_of_a_graph_are_its_beam() -> None:
    graph = opened(HnswConfig(M=4, ef_construction=8), own := vectors(NUM))
    items = ByComponents(
        DotProduct(DotProductConfig(), has_bounded_vectors=False),
        ItemState(own[:, None], None, own),
        {"average": graph},
    )
    query, exact = queries(60), items.search(queries(60), SearchSpec(10)).item_rows

    def recall(params: SearchParams) -> float:
        rows = items.search(query, SearchSpec(10), "ann", params).item_rows
        return float((rows[:, :, None] == exact[:, None, :]).any(dim=2).float().mean())

    narrow = SearchParams(ef_search=1)
    assert recall(narrow) < recall(SearchParams(ef_search=1, num_candidates=300))
    assert recall(SearchParams(ef_search=300)) == recall(SearchParams(num_candidates=300))


@pytest.mark.parametrize(
    ("kind", "name", "values"), [("hnsw fp32", "ef_search", (16, 64)), ("ivf fp32", "nprobe", (1, 2, 6))]
)
def test_what_a_search_looks_at_means_what_faiss_means_by_it(kind: str, name: str, values: tuple[int, ...]) -> None:
    own, query, lists = vectors(3000), queries(60), []
    ours = ByComponents(
        DotProduct(DotProductConfig(), has_bounded_vectors=False),
        ItemState(own[:, None], None, own),
        {"average": opened(KINDS[kind], own)},
    )
    theirs = faiss.deserialize_index(np.frombuffer(built(KINDS[kind], own).data, np.uint8))
    is_graph = name == "ef_search"
    for value in values:
        looked_at = faiss.SearchParametersHNSW(efSearch=value) if is_graph else faiss.SearchParametersIVF(nprobe=value)
        _, rows = theirs.search(query.components[:, 0].numpy(), 10, params=looked_at)
        params = SearchParams.of_request({"method": "ann", name: value}, 10)
        lists.append(ours.search(query, SearchSpec(10), "ann", params).item_rows.tolist())
        assert lists[-1] == rows.tolist()
    assert lists[0] != lists[1], "it matters"
    if is_graph:
        usual = SearchParams.of_request({"method": "ann"}, 10)
        assert ours.search(query, SearchSpec(10), "ann", usual).item_rows.tolist() == lists[values.index(EF_SEARCH)]


@kinds
def test_fewer_candidates_than_items_are_refused(config: IndexConfig) -> None:
    with pytest.raises(ValueError, match="num_candidates must be at least 10, the k of the search, got 9"):
        searcher(config).search(queries(), SearchSpec(10), "ann", SearchParams(num_candidates=9))


def test_a_search_may_ask_for_all_there_are() -> None:
    for config in (own for own in KINDS.values() if own.kind != "hnsw"):
        found = searcher(config).search(queries(), SearchSpec(NUM + 5), "ann", SearchParams(ef_search=NUM))
        assert found.num_found().tolist() == [NUM] * 9


def test_only_a_request_for_ann_leaves_its_candidates_open() -> None:
    assert SearchParams.of_request({"method": "ann"}, 10).num_candidates is None
    assert SearchParams.of_request({"method": "ann", "num_candidates": 20}, 10).num_candidates == 20
    for method in ("average", "surrogate", None):
        assert SearchParams.of_request({"method": method}, 10).num_candidates == NUM_CANDIDATES
        assert SearchParams.of_request({"method": method}, 2000).num_candidates == 2000
    assert SearchParams().num_scored == NUM_CANDIDATES


@kinds
def test_one_list_says_what_lists_that_grow_say(config: IndexConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    own = vectors(200)
    own[50:90] = own[40]  # which ties
    own[120:130] = own[3]
    index, query, params = opened(config, own), vectors(30, seed=2), SearchParams(nprobe=6, ef_search=200)
    at_once = [index.search(query, SearchSpec(k), params) for k in (1, 7, 41, 199, 200)]
    monkeypatch.setattr(FaissIndex, "_at_once", lambda *_: None)
    for found, k in zip(at_once, (1, 7, 41, 199, 200), strict=True):
        grown = index.search(query, SearchSpec(k), params)
        assert torch.equal(found.scores, grown.scores)
        assert torch.equal(found.item_rows, grown.item_rows) or config.kind == "hnsw"  # which may end in any of equals
        assert torch.equal(found.bound, grown.bound)
        assert found.reasons == grown.reasons
        assert torch.equal(found.is_truncated, grown.is_truncated)


def test_a_graph_that_rounds_knows_by_how_much() -> None:
    own = vectors(100)
    assert built(HnswConfig(M=8), own).error == 0
    assert built(HnswConfig(M=8, storage="sq8"), own).error > built(HnswConfig(M=8, storage="fp16"), own).error > 0
    assert opened(HnswConfig(M=8), own).knows_scores
    assert not opened(HnswConfig(M=8, storage="fp16"), own).knows_scores
    assert not opened(FlatConfig(storage="sq8"), own).knows_scores
