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
from rails_ray.search.indexes import grown_lists, hnsw
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex, first_vector
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.masks import Exclusions
from rails_ray.search.spec import SearchSpec
from support.faiss_indexes import STORAGES, built, opened, vectors

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
    has_copies = num_copies * 2 * GRAPH.M <= num_distinct * items.shape[1]
    assert index.index.ntotal == (len(items) if has_copies else num_distinct)
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


@pytest.mark.parametrize(("num_distinct", "num_copies"), [(20, 30), (60, 30)])
def test_copies_in_several_blocks(num_distinct: int, num_copies: int) -> None:
    items = with_copies(num_distinct, num_copies)
    data, _ = build(fit(GRAPH, items, len(items), 0), [items[:10], items[10:10], items[10:]])
    found = FaissIndex.read(data, 0.0).search(items[:4], SearchSpec(len(items)))
    assert found.num_found().tolist() == [len(items)] * 4


@storages
def test_a_graph_with_few_copies_has_the_vectors_of_all_items(storage: Any) -> None:
    items = with_copies(60, 13)
    items[items == 0.0] = 0.0  # none of -0
    data, error = built(HnswConfig(M=8, ef_construction=40, storage=storage), items)
    memory = np.frombuffer(bytearray(data), np.uint8)
    index = FaissIndex.read(memory, error)
    if storage != "fp32":
        assert index.vectors is None
        assert index.index.ntotal == 60
        return
    assert index.vectors is not None
    assert torch.equal(index.vectors.view(torch.int32), items.view(torch.int32))
    place = index.vectors.data_ptr() - memory.ctypes.data
    assert place < first_vector(len(data), 73, 8)
    assert (place - first_vector(len(data), 73, 8)) % 64 == 0


def test_a_graph_with_many_copies_has_distinct_vectors_alone() -> None:
    """A link takes four bytes, as a number does, and each of the copies would have 16 of them."""
    for num_copies, num_nodes in ((30, 90), (31, 60)):
        assert opened(GRAPH, with_copies(60, num_copies)).index.ntotal == num_nodes


def test_copies_are_linked_with_nothing() -> None:
    items = with_copies(60, 13)
    index = opened(GRAPH, items)
    linked = {int(node) for node in faiss.vector_to_array(index.index.hnsw.neighbors) if node >= 0}
    firsts = set(np.unique(items.numpy() + 0.0, axis=0, return_index=True)[1].tolist())
    assert linked <= firsts
    assert len(linked) > 50
    assert index.index.hnsw.entry_point in firsts


def test_a_graph_of_distinct_vectors_alone_is_read_as_before() -> None:
    """As releases wrote it for any copies, and this one for many."""
    items = with_copies(60, 13)
    distinct, node_of = np.unique(items.numpy() + 0.0, axis=0, return_inverse=True)
    graph = faiss.deserialize_index(np.frombuffer(fit(GRAPH, items, len(items), 0), np.uint8))
    graph.add(distinct)
    data = faiss.serialize_index(graph).tobytes() + node_of.reshape(-1).astype(np.int64).tobytes()
    former, queries = FaissIndex.read(data, 0.0), vectors(5, 1)
    assert former.num_items == 73
    assert former.vectors is None
    spec, params = SearchSpec(73), SearchParams(ef_search=200)
    before, now = (own.search(queries, spec, params) for own in (former, opened(GRAPH, items)))
    assert torch.allclose(before.scores, now.scores, atol=1e-6)
    assert before.item_rows.sort().values.equal(now.item_rows.sort().values)


@pytest.mark.parametrize("num_copies", [40, 200])
@pytest.mark.parametrize("of_beam", [1.0, 1000.0])
def test_a_mask_that_leaves_few_items_widens_the_beam(
    num_copies: int, of_beam: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a wider walk, and by looking at every vector."""
    monkeypatch.setattr(hnsw, "LARGEST_BEAM", 8)
    monkeypatch.setattr(hnsw, "EF_SEARCH", 4)
    monkeypatch.setattr(hnsw, "OF_BEAM", of_beam)
    monkeypatch.setattr(grown_lists, "MOST_DROPPED", 0)
    items = with_copies(100, num_copies)
    left = torch.randperm(len(items), generator=torch.manual_seed(3))[:20].tolist()
    mask = Exclusions.of([[row for row in range(len(items)) if row not in left]] * 3)
    found = opened(GRAPH, items).search(vectors(3, 7), SearchSpec(20, at_least=20, mask=mask))
    for line in range(3):
        rows = found.item_rows[line, : int(found.num_found()[line])].tolist()
        assert set(rows) <= set(left)
        assert len(set(rows)) == len(rows)
        expected = (vectors(3, 7)[line] @ items[rows].T).tolist()
        assert found.scores[line, : len(rows)].tolist() == pytest.approx(expected, abs=1e-5)
    if of_beam > 1:
        assert found.num_found().tolist() == [20] * 3


@pytest.mark.parametrize("num_copies", [8, 30])
@pytest.mark.parametrize("end", [-1, -8, -64, slice(None)])
def test_bytes_that_are_missing_or_others(end: Any, num_copies: int) -> None:
    data, _ = build(fit(GRAPH, vectors(20), 50, 0), [with_copies(20, num_copies)])
    damaged = data[:end] if isinstance(end, int) else data[:-8] + (99).to_bytes(8, "little")
    with pytest.raises(DamagedError, match="an index must be what FAISS wrote, got"):
        FaissIndex.read(damaged, 0.0)


@pytest.mark.parametrize(("place", "number"), [(0, -1), (27, -1), (0, 28), (27, 28), (0, 27), (1, 27)])
def test_a_node_that_is_none(place: int, number: int) -> None:
    data, _ = build(fit(GRAPH, vectors(20), 28, 0), [with_copies(20, 8)])
    start = len(data) - 8 * 32 + 8 * place
    assert np.frombuffer(data[start:], np.int64)[0] in range(28)
    with pytest.raises(DamagedError, match="an index must be what FAISS wrote, got"):
        FaissIndex.read(data[:start] + number.to_bytes(8, "little", signed=True) + data[start + 8 :], 0.0)


def test_all_of_many_copies_are_listed() -> None:
    index = opened(GRAPH, with_copies(10, 5000))
    found = index.search(vectors(4), SearchSpec(5010))
    assert found.num_found().tolist() == [5010] * 4
