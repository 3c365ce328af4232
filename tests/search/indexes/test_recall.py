"""Recall of an index by a sample of its items."""

import pytest
import torch

from rails_ray.cli.rendering import low_recalls
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes import recall
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.search.indexes.flat import FlatIndex
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.indexes.recall import sampled_recall
from rails_ray.search.spec import SearchResult, SearchSpec
from support.faiss_indexes import opened, vectors


class OneList:
    """An index that is asked to look at one list alone."""

    error, is_exact, knows_scores = 0.0, False, True

    def __init__(self, index: FaissIndex) -> None:
        self.index = index

    def search(self, queries: torch.Tensor, spec: SearchSpec, params: SearchParams | None = None) -> SearchResult:
        return self.index.search(queries, spec, SearchParams(nprobe=1))

    def num_products(self, num_left: int, num_queries: int, params: SearchParams) -> float:
        return self.index.num_products(num_left, num_queries, SearchParams(nprobe=1))


def test_it_equals_a_count_of_the_rows_that_an_exact_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "NUM_QUERIES", 40)
    items = vectors(400)
    index = OneList(opened(IvfConfig(nlist=6), items))
    queries = items[torch.linspace(0, 399, 40).long()]
    exact = (queries @ items.T).topk(10, dim=1).indices.tolist()
    found = index.search(queries, SearchSpec(10)).item_rows.tolist()
    share = sum(len({*own} & {*best}) for own, best in zip(found, exact, strict=True)) / 400
    assert 0.3 < share < 0.95
    assert sampled_recall(index, lambda: items.split(70), 400) == pytest.approx(share)


@pytest.mark.parametrize("num_items", [1, 3, 300])
def test_an_exact_search_has_all_of_it_copies_and_few_items_too(num_items: int) -> None:
    items = vectors(num_items)
    items = torch.cat([items, items[:1].repeat(50, 1)])
    assert sampled_recall(FlatIndex(items), lambda: [items], len(items)) == 1
    assert sampled_recall(opened(HnswConfig(), items), lambda: items.split(9), len(items)) == 1


def test_of_no_item_there_is_none() -> None:
    assert sampled_recall(FlatIndex(vectors(0)), lambda: [], 0) is None


def test_it_is_said_when_it_is_low() -> None:
    assert low_recalls({"average": 0.95, "component-0": 0.514}) == [
        "index of component-0: recall 0.51 of the ten best, below 0.95: raise nprobe or ef_search in requests, or "
        "encode with another --index"
    ]
