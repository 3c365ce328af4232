"""Equal vectors in a graph: each item of them is found, and none hides the others."""

from typing import Any

import faiss
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import oracles.ranking
from rails_ray.errors import DamagedError
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes import grown_lists
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.masks import Exclusions
from rails_ray.search.spec import SearchSpec
from support.faiss_indexes import STORAGES, opened, vectors

GRAPH = HnswConfig(M=8, ef_construction=40)
storages = pytest.mark.parametrize("storage", STORAGES)


def with_copies(num_distinct: int, num_copies: int, seed: int = 0) -> torch.Tensor:
    """Vectors of length 1, and copies of the first at random places, some of them of -0 where the first has 0."""
    distinct = F.normalize(vectors(num_distinct, seed), dim=1)
    distinct[0, 0] = 0.0
    copies = distinct[:1].repeat(num_copies, 1)
    copies[::2, 0] = -0.0
    every = torch.cat([distinct, copies])
    return every[torch.randperm(len(every), generator=torch.manual_seed(seed))]


@storages
def test_an_item_near_many_copies_is_found_and_so_is_one_far_away(storage: Any) -> None:
    generator = torch.manual_seed(0)
    copies = F.normalize(torch.randn(1, 32, generator=generator), dim=1).repeat(3000, 1)
    near = F.normalize(copies[:100] + 0.05 * torch.randn(100, 32, generator=generator), dim=1)
    far = F.normalize(torch.randn(100, 32, generator=generator), dim=1)
    items = torch.cat([copies, near, far])
    index = opened(HnswConfig(storage=storage), items)
    assert index.num_items == 3200
    found = index.search(items[3000:], SearchSpec(1)).item_rows[:, 0]
    is_found = (found == torch.arange(3000, 3200)).view(2, 100).sum(dim=1)  # near them and far away
    assert is_found.min() >= 98
    assert index.search(copies[:1], SearchSpec(5)).item_rows.tolist() == [[0, 1, 2, 3, 4]]


@given(st.integers(1, 12), st.integers(0, 25), st.integers(0, 99), st.data())
def test_lists_equal_the_oracle(num_distinct: int, num_copies: int, seed: int, data: st.DataObject) -> None:
    """A beam as wide as there are items: exclusions that are dropped and others that are passed over, thresholds."""
    items = with_copies(num_distinct, num_copies, seed)
    index, queries = opened(GRAPH, items), vectors(3, seed + 1)
    assert index.index.ntotal == num_distinct
    scores = (queries @ items.T).tolist()
    row = st.integers(0, len(items) - 1)
    excluded = [data.draw(st.lists(row, max_size=len(items), unique=True)) for _ in scores]
    k, mask = data.draw(st.integers(1, len(items) + 2)), Exclusions.of(excluded)
    threshold = torch.tensor([data.draw(st.sampled_from([-torch.inf, 0.1, torch.inf])) for _ in scores])
    at_least = data.draw(st.integers(0, k))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grown_lists, "MOST_DROPPED", data.draw(st.sampled_from([0, 3, 1000])))
        patched.setattr(grown_lists, "SPARE", data.draw(st.sampled_from([0, 2])))
        for spec in (SearchSpec(k, mask=mask), SearchSpec(k, threshold, at_least, mask)):
            found = index.search(queries, spec, SearchParams(ef_search=500))
            for line, (own, out) in enumerate(zip(scores, excluded, strict=True)):
                reach = torch.inf if spec.threshold is None else float(threshold[line])
                rows, _ = oracles.ranking.items_above(own, reach, k, spec.least, out)
                num = int(found.num_found()[line])
                assert found.scores[line, :num].tolist() == pytest.approx([own[row] for row in rows], abs=1e-5)
                listed = found.item_rows[line, :num].tolist()
                assert len(set(listed)) == len(listed)
                assert not set(listed) & set(out)
                assert [own[row] for row in listed] == pytest.approx([own[row] for row in rows], abs=1e-5)


def test_a_graph_of_an_earlier_release_is_read_as_it_is() -> None:
    items = with_copies(20, 30)
    graph = faiss.deserialize_index(np.frombuffer(fit(GRAPH, items, len(items), 0), np.uint8))
    graph.add(items.numpy())
    former = FaissIndex.read(faiss.serialize_index(graph), 0.0)
    assert former.num_items == 50
    assert former.search(items[:3], SearchSpec(60)).scores.shape[1] == 50


def test_distinct_vectors_add_no_byte() -> None:
    items = vectors(30)
    graph = faiss.deserialize_index(np.frombuffer(fit(GRAPH, items, 30, 0), np.uint8))
    graph.add(items.numpy())
    assert build(fit(GRAPH, items, 30, 0), [items]).data == faiss.serialize_index(graph).tobytes()


def test_copies_in_several_blocks() -> None:
    items = with_copies(20, 30)
    data, _ = build(fit(GRAPH, items, 50, 0), [items[:10], items[10:10], items[10:]])
    found = FaissIndex.read(data, 0.0).search(items[:4], SearchSpec(50))
    assert found.num_found().tolist() == [50] * 4


@pytest.mark.parametrize("end", [-1, -8, slice(None)])
def test_bytes_that_are_missing_or_others(end: Any) -> None:
    data, _ = build(fit(GRAPH, vectors(20), 50, 0), [with_copies(20, 30)])
    damaged = data[:end] if isinstance(end, int) else data[:-8] + (99).to_bytes(8, "little")
    with pytest.raises(DamagedError, match="an index must be what FAISS wrote, got"):
        FaissIndex.read(damaged, 0.0)


def test_all_of_many_copies_are_listed() -> None:
    index = opened(GRAPH, with_copies(10, 5000))
    found = index.search(vectors(4), SearchSpec(5010))
    assert found.num_found().tolist() == [5010] * 4
