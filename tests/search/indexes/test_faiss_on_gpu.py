"""Copies of FAISS's indexes on a GPU, stood in for by ones on the CPU, and why some indexes have none."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import faiss
import numpy as np
import pytest
import torch
from torch import Tensor

from rails_ray.modules.quantizers.pq import fit_pq
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes import codes, faiss_on_gpu, flat
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig
from rails_ray.search.indexes.faiss_on_gpu import HalfCopy, on_gpu
from rails_ray.search.indexes.flat import FlatConfig, Storage
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.masks import Exclusions
from rails_ray.search.spec import SearchSpec
from support.faiss_indexes import ALL_LISTS, STORAGES, opened, stored, vectors


@pytest.fixture(autouse=True)
def nothing_was_said() -> None:
    faiss_on_gpu._warn.cache_clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The n of each call of a copy "on the GPU"."""
    made: list[int] = []

    class Copy:
        def __init__(self, index: Any) -> None:
            self.index = faiss.clone_index(index)

        def search(self, queries: Any, n: int, params: Any) -> Any:
            made.append(n)
            assert n <= 2048
            assert params is None or params.sel is None
            return self.index.search(queries, n, params=params)

    class HalfOnCpu(HalfCopy):
        def __init__(self, index: Any, device: str) -> None:
            assert device == "cuda"
            super().__init__(index, "cpu")

        def search(self, queries: Any, n: int, params: Any = None) -> Any:
            made.append(n)
            return super().search(queries, n, params)

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    workspaces = list[int]()
    resources = SimpleNamespace(setTempMemory=workspaces.append)
    monkeypatch.setattr(faiss, "StandardGpuResources", lambda: resources, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda _, device, index: Copy(index), raising=False)
    monkeypatch.setattr(faiss_on_gpu, "HalfCopy", HalfOnCpu)
    faiss_on_gpu._gpu_resources.cache_clear()
    yield made
    faiss_on_gpu._gpu_resources.cache_clear()
    assert len(workspaces) <= 1, "all copies share one"


@pytest.mark.parametrize(
    "config",
    [FlatConfig(), FlatConfig(storage="fp16"), *(IvfConfig(nlist=6, storage=storage) for storage in STORAGES)],
)
def test_a_copy_on_the_gpu_finds_the_same(config: IndexConfig, calls: list[int]) -> None:
    index, queries = opened(config, vectors(5000)), vectors(3, 1)
    copy = on_gpu(index)
    assert (index.clone, copy.on_cpu) == (None, None)
    rows = [[1, 2, 3], [], list(range(0, 5000, 2))]
    for spec in (
        SearchSpec(5),
        SearchSpec(5000, torch.full((3,), 0.3)),
        SearchSpec(4, mask=Exclusions.of(rows)),
        SearchSpec(3000),
    ):
        for params in (None, ALL_LISTS):
            one, other = index.search(queries, spec, params), copy.search(queries, spec, params)
            assert torch.equal(one.item_rows, other.item_rows)
            torch.testing.assert_close(one.bound, other.bound, rtol=0, atol=1e-6)
            assert torch.equal(one.num_scored, other.num_scored)
    assert calls


def test_vectors_of_16_bits_are_scored_as_they_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """With queries in float32, in any number of blocks; a query that is NaN finds nothing."""
    monkeypatch.setattr(faiss_on_gpu, "ROWS_OF_BLOCK", 7)
    index, queries = opened(FlatConfig(storage="fp16"), vectors(50)), vectors(4, 1)
    queries[2, 0] = torch.nan
    copy = HalfCopy(index.index, "cpu")
    assert torch.equal(copy.scan.vectors.float(), stored(index))
    scores, rows = copy.search(queries.numpy(), 9)
    expected = (queries @ stored(index).T).nan_to_num(-torch.inf).topk(9)
    assert np.allclose(scores, expected.values.numpy(), atol=1e-6)
    assert rows[[0, 1, 3]].tolist() == expected.indices[[0, 1, 3]].tolist()
    assert (rows[2] == -1).all()


def test_what_a_block_widens_has_as_much_memory_as_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, for one query of vectors of 16 bits, whose blocks would hold the whole corpus; not on a CPU."""
    monkeypatch.setattr(flat, "GPU_BLOCK_SCORES", 80)
    items, query = vectors(25), vectors(1, 1)

    def firsts(vectors: Tensor, query: Tensor) -> list[int]:
        return [first for first, _ in flat.FlatIndex(vectors)._blocks(query)]

    assert firsts(items.half().to("meta"), query.to("meta")) == [0, 10, 20]
    assert firsts(items.to("meta"), query.to("meta")) == [0]
    monkeypatch.setattr(flat, "BLOCK_SCORES", 80)
    assert firsts(items.half(), query) == [0]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (FlatConfig(storage="sq8"), "an index flat is searched on the CPU, as FAISS has no such index on a GPU"),
        (HnswConfig(M=8), "an index hnsw is searched on the CPU, as FAISS has no such index on a GPU"),
    ],
)
def test_what_has_no_copy_on_a_gpu(
    config: IndexConfig, reason: str, calls: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    index, queries = opened(config, vectors(50)), vectors(3, 1)
    for _ in range(2):  # as shards and versions do
        copy = on_gpu(index)
        assert (copy.clone, copy.on_cpu) == (None, reason)
    assert caplog.messages == [reason]
    assert torch.equal(copy.search(queries, SearchSpec(5)).item_rows, index.search(queries, SearchSpec(5)).item_rows)
    assert not calls


class Graph:
    """CAGRA's place: the rows that score best in any order, the first of them twice in place of the last, or a row that
    is none in place of a few."""

    beams: ClassVar[list[int]] = []
    least_row: ClassVar[int | None] = None

    def __init__(self, resources: Any, width: int, metric: int, config: Any) -> None:
        assert (width, metric) == (8, faiss.METRIC_INNER_PRODUCT)

    def train(self, items: Any) -> None:
        assert items.dtype == np.float32
        self.items = items

    def search(self, queries: Any, n: int, params: Any) -> Any:
        self.beams.append(params.itopk_size)
        rows = np.argsort(-(queries @ self.items.T), axis=1)[:, :n][:, ::-1].copy()
        if self.least_row is not None:
            rows[rows < self.least_row] = 2**32 - 1
        rows[:, 0] = rows[:, -1]  # the last of the list is lost
        return np.zeros(rows.shape, np.float32), rows


@pytest.fixture
def beams(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As FAISS is that was built with cuVS; the beam of each search of its graph."""
    monkeypatch.setattr(Graph, "beams", [])
    monkeypatch.setattr(faiss, "GpuIndexCagra", Graph, raising=False)
    for name in ("GpuIndexCagraConfig", "SearchParametersCagra"):
        monkeypatch.setattr(faiss, name, SimpleNamespace, raising=False)
    return Graph.beams


@pytest.mark.parametrize("storage", STORAGES)
def test_a_graph_on_the_gpu_takes_the_place_of_hnsw(storage: Storage, beams: list[int]) -> None:
    index, queries = opened(HnswConfig(M=8, storage=storage), vectors(200)), vectors(3, 1)
    copy, wide = on_gpu(index), SearchParams(ef_search=200)
    assert copy.on_cpu is None
    for spec in (SearchSpec(5), SearchSpec(5, torch.full((3,), 0.3)), SearchSpec(300)):
        one, other = index.search(queries, spec, wide), copy.search(queries, spec, wide)
        assert torch.equal(one.item_rows[:, :100], other.item_rows[:, :100])
        torch.testing.assert_close(one.scores[:, :100], other.scores[:, :100])
        assert torch.equal(other.bound, one.bound)
    assert set(beams) == {224}
    copy.search(queries, SearchSpec(5))
    assert beams[-1] == 64
    spec = SearchSpec(5, mask=Exclusions.of([[0, 1, 2]] * 3))
    assert torch.equal(copy.search(queries, spec).item_rows, index.search(queries, spec).item_rows)


def test_rows_that_are_none_are_left_out(beams: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "least_row", 100)
    index, queries = opened(HnswConfig(M=8), vectors(200)), vectors(3, 1)
    scores, rows = on_gpu(index).clone.search(queries.numpy(), 200, SimpleNamespace(efSearch=64))
    for line, query in enumerate(queries):
        expected = (vectors(200)[100:] @ query).sort(descending=True)
        assert rows[line, :99].tolist() == (expected.indices + 100)[:99].tolist()
        assert np.allclose(scores[line, :99], expected.values[:99].numpy(), atol=1e-6)
        assert (rows[line, 100:] == -1).all()
        assert np.isneginf(scores[line, 100:]).all()


@pytest.mark.parametrize("fails", [False, True])
def test_a_list_that_lacks_a_row_is_that_of_the_cpu(
    fails: bool, beams: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where every vector is looked at, as few are found, and where lists grow."""

    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such beam")

    if fails:
        monkeypatch.setattr(Graph, "search", refused)
    monkeypatch.setattr(Graph, "least_row", 3000)
    items, queries = vectors(6000), vectors(3, 1)
    index = opened(HnswConfig(M=8), items)
    copy, best = on_gpu(index), (queries @ items.T).topk(75).indices.tolist()
    for spec in (
        SearchSpec(10, at_least=10),
        SearchSpec(2000, torch.full((3,), 0.2)),
        SearchSpec(10, mask=Exclusions.of(best)),
    ):
        found, expected = copy.search(queries, spec), index.search(queries, spec)
        assert torch.equal(found.item_rows, expected.item_rows)
        assert torch.equal(found.bound, expected.bound)
        assert torch.equal(found.is_truncated, expected.is_truncated)
    sentence = "an index hnsw is searched on the CPU, as its graph on the GPU cannot be searched: no such beam"
    assert caplog.messages == [sentence] * fails


@pytest.mark.parametrize("has_equal", [False, True])
def test_a_graph_that_cannot_be_on_the_gpu(has_equal: bool, beams: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("the graph needs more vectors")

    monkeypatch.setattr(Graph, "train", refused)
    items, queries = vectors(60).repeat(1 + has_equal, 1), vectors(3, 1)
    index = opened(HnswConfig(M=8), items)
    copy = on_gpu(index)
    reason = "some of its vectors are equal"
    if not has_equal:
        reason = "it cannot be copied to the GPU: the graph needs more vectors"
    assert copy.on_cpu == f"an index hnsw is searched on the CPU, as {reason}"
    assert torch.equal(copy.search(queries, SearchSpec(5)).item_rows, index.search(queries, SearchSpec(5)).item_rows)
    assert not beams


def test_equal_vectors_in_a_graph_are_found_beside_a_gpu_too(calls: list[int]) -> None:
    index, queries = opened(HnswConfig(M=8), vectors(40).repeat(2, 1)), vectors(3, 1)
    found = on_gpu(index).search(queries, SearchSpec(6))
    assert torch.equal(found.item_rows, index.search(queries, SearchSpec(6)).item_rows)


@pytest.mark.parametrize("config", [IvfConfig(nlist=6), FlatConfig(storage="fp16")])
def test_what_cannot_be_copied_is_searched_on_the_cpu(
    config: IndexConfig, calls: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(faiss, "index_cpu_to_gpu", refused)
    monkeypatch.setattr(faiss_on_gpu, "HalfCopy", refused)
    index, queries = opened(config, vectors(500)), vectors(3, 1)
    copy = on_gpu(index)
    reason = f"an index {config.kind} is searched on the CPU, as it cannot be copied to the GPU: out of memory"
    assert copy.on_cpu == reason
    assert caplog.messages == [reason]
    assert copy.search(queries, SearchSpec(5)).num_found().tolist() == [5] * 3
    assert not calls


def test_a_faiss_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    copy = on_gpu(opened(FlatConfig(), vectors(5)))
    assert copy.clone is None
    assert copy.on_cpu == "an index flat is searched on the CPU, as FAISS sees no GPU: install faiss-gpu"
    assert caplog.messages == [copy.on_cpu]


def in_lists(items: Tensor) -> codes.MeanIndex:
    quantizer = fit_pq(items, 4, 16, seed=0)
    centroids = codes.fit_lists(items, 5, 0)
    return codes.in_lists(quantizer, quantizer.encode(items), codes.lists_of(items, centroids), centroids)


def test_codes_in_lists_are_offered_to_faiss(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which refuses them, as their codes are not of residuals: its own sentence is kept."""
    items, queries = vectors(600), vectors(3, 1)
    own = in_lists(items)
    expected = own.search(queries, SearchSpec(5))
    assert own.on_cpu is None
    assert isinstance(own.index, FaissIndex)
    there = on_gpu(own.index)
    assert torch.equal(there.search(queries, SearchSpec(5)).item_rows, expected.item_rows)
    assert calls, "a FAISS that takes them is used"

    def refused(*_: Any) -> None:
        raise RuntimeError("GPU: only by_residual = true is supported")

    monkeypatch.setattr(faiss, "index_cpu_to_gpu", refused)
    own.index = on_gpu(own.index)
    with_reason = "an index ivf is searched on the CPU, as it cannot be copied to the GPU: GPU: only by_residual = true"
    assert str(own.on_cpu).startswith(with_reason)
    assert torch.equal(own.search(queries, SearchSpec(5)).item_rows, expected.item_rows)
