"""FAISS's indexes as they are made, stored and opened, and what they refuse."""

import gc
import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from rails_ray.errors import DamagedError, UnsupportedError
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes import ivf
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig, first_vector
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.masks import Exclusions
from rails_ray.search.spec import SearchSpec
from rails_ray.storage.memory import aligned
from support.faiss_indexes import (
    KINDS,
    built,
    kinds,
    opened,
    stored,
    vectors,
)

# What is made


@kinds
def test_the_same_vectors_make_the_same_bytes(config: IndexConfig) -> None:
    """Whatever the number of threads, which is as before afterwards."""
    before = faiss.omp_get_max_threads()
    made = []
    try:
        for threads in (1, 4):
            faiss.omp_set_num_threads(threads)
            fitted = fit(config, vectors(2000), 2000, seed=3)
            assert faiss.omp_get_max_threads() == threads
            made.append((fitted, build(fitted, vectors(2000).split(700))))
            assert faiss.omp_get_max_threads() == threads
    finally:
        faiss.omp_set_num_threads(before)
    assert made[0] == made[1]
    if config.kind == "ivf":
        assert fit(config, vectors(2000), 2000, seed=4) != made[0][0]


@pytest.mark.parametrize("config", [FlatConfig(storage="sq8"), IvfConfig(nlist=6, storage="fp16")], ids=["flat", "ivf"])
def test_blocks_do_not_change_the_bytes(config: IndexConfig) -> None:
    fitted = fit(config, vectors(200), 200, seed=0)
    whole = build(fitted, [vectors(200)])
    assert build(fitted, vectors(200).split(17)) == whole
    assert build(fitted, [vectors(200)[:0], vectors(200)]) == whole


@kinds
def test_plain_faiss_opens_the_bytes(config: IndexConfig) -> None:
    data, _ = built(config, vectors(200))
    index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    assert index.ntotal == 200
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    if config.kind == "ivf":
        index.nprobe = 2
    if config.kind == "hnsw":
        index.hnsw.efSearch = 64
        assert index.hnsw.efConstruction == 40
    queries = vectors(3, 1)
    scores, rows = index.search(queries.numpy(), 5)
    found = FaissIndex.read(data, 0.0).search(queries, SearchSpec(5), SearchParams(nprobe=2))
    assert found.item_rows.tolist() == rows.tolist()
    assert found.scores.tolist() == scores.tolist()
    memory = io.BytesIO(data)
    reader = faiss.PyCallbackIOReader(memory.read)
    assert faiss.read_index(reader).ntotal == 200
    assert faiss.serialize_index(index).tobytes()[:4] == data[:4]


def test_vectors_of_any_dtype_and_layout_are_float32() -> None:
    items = vectors(60).half()
    data = built(FlatConfig(), items.float())
    for same in (items, items.bfloat16().half() * 0 + items, items.double(), items.T.contiguous().T):
        assert built(FlatConfig(), same) == data
    assert built(FlatConfig(), items.bfloat16()) == built(FlatConfig(), items.bfloat16().float())
    index = FaissIndex.read(*data)
    query = vectors(2, 1).half()
    found = index.search(query.float(), SearchSpec(3))
    for same in (query, query.double(), query.float().requires_grad_(), query.T.contiguous().T):
        again = index.search(same, SearchSpec(3))
        assert torch.equal(again.scores, found.scores)
        assert again.scores.dtype == torch.float32
        assert again.item_rows.dtype == again.num_scored.dtype == torch.int64


@pytest.mark.parametrize("config", [FlatConfig(), HnswConfig()])
def test_vectors_in_fp32_are_read_where_they_begin_at_an_aligned_byte(config: IndexConfig) -> None:
    given = vectors(100)
    data, error = built(config, given)
    place = first_vector(len(data), *given.shape)
    memory = aligned(len(data), place)
    memory[:] = np.frombuffer(data, np.uint8)
    index = FaissIndex.read(memory, error)
    storage = index.index if config.kind == "flat" else faiss.downcast_index(index.index.storage)
    first = faiss.rev_swig_ptr(storage.get_xb(), given.numel()).ctypes.data
    assert first == memory.ctypes.data + place
    assert first % 64 == 0
    assert index.vectors is not None
    assert index.vectors.data_ptr() == first
    assert torch.equal(index.vectors, given)


@pytest.mark.parametrize("config", [FlatConfig(storage="fp16"), HnswConfig(storage="sq8"), IvfConfig(nlist=4)])
def test_no_vectors_of_an_index_that_rounds_or_orders_them(config: IndexConfig) -> None:
    assert FaissIndex.read(*built(config, vectors(100))).vectors is None


def test_no_vectors_of_a_graph_in_which_equal_ones_are_one() -> None:
    assert FaissIndex.read(*built(HnswConfig(), vectors(50).repeat(2, 1))).vectors is None


def test_an_index_lies_in_the_memory_that_it_was_read_from() -> None:
    for config in KINDS.values():
        data, error = built(config, vectors(100))
        queries = vectors(3, 1)
        expected = FaissIndex.read(data, error).search(queries, SearchSpec(4)).item_rows
        memory = bytearray(data)
        index = FaissIndex.read(memoryview(memory).toreadonly(), error)
        if config == FlatConfig():
            assert index.search(queries, SearchSpec(4)).item_rows.tolist() == expected.tolist()
            memory[-400:] = bytes(400)
            assert not stored(index)[-1].any()
            continue
        del memory
        gc.collect()
        assert torch.equal(index.search(queries, SearchSpec(4)).item_rows, expected)


def test_many_threads_find_what_one_finds() -> None:
    items, queries = vectors(3000, width=16), vectors(48, 1, 16)
    masks = [None, Exclusions.of([[row] for row in range(12)]), Exclusions.of([list(range(2000))] * 12)]
    for config in (FlatConfig(), FlatConfig(storage="sq8"), IvfConfig(nlist=6, storage="sq8"), HnswConfig(M=8)):
        index = opened(config, items)
        jobs = [
            (
                queries[first : first + 12],
                SearchSpec(5, threshold, mask=mask),
                SearchParams(nprobe=nprobe, ef_search=nprobe * 20),
            )
            for nprobe in (1, 3)
            for first in range(0, 48, 12)
            for threshold in (None, torch.full((12,), 0.2))
            for mask in masks
        ]
        alone = [index.search(*job) for job in jobs]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(index.search, *zip(*jobs, strict=True)))
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(one.item_rows, other.item_rows)
            assert torch.equal(one.scores, other.scores)
            assert torch.equal(one.num_scored, other.num_scored)


# Configs and errors


def test_lists_are_four_times_the_root_but_leave_39_items_each() -> None:
    assert ivf.num_lists(0, 1_000_000, 1_000_000) == 4000
    assert ivf.num_lists(0, 1_000_000, 39_000) == 1000
    assert ivf.num_lists(0, 0, 1) == ivf.num_lists(0, 3, 1) == 1
    assert ivf.num_lists(17, 1_000_000, 17) == 17
    fitted = fit(IvfConfig(), vectors(400), 400, seed=0)
    assert FaissIndex.read(fitted, 0.0).index.nlist == 10


def test_default_probing() -> None:
    index, queries = opened(IvfConfig(nlist=25), vectors(500)), vectors(3, 1)
    for one, other in ((None, SearchParams()), (None, SearchParams(nprobe=5)), (None, SearchParams(ef_search=3))):
        found, same = index.search(queries, SearchSpec(3), one), index.search(queries, SearchSpec(3), other)
        assert found.num_scored.tolist() == same.num_scored.tolist()
        assert torch.equal(found.item_rows, same.item_rows)
    graph = opened(HnswConfig(), vectors(500))
    assert torch.equal(
        graph.search(queries, SearchSpec(3)).item_rows,
        graph.search(queries, SearchSpec(3), SearchParams(ef_search=64, nprobe=10**6)).item_rows,
    )
    assert graph.search(queries, SearchSpec(100), SearchParams(ef_search=1)).num_found().tolist() == [100] * 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IvfConfig(nlist=-1), "nlist must be at least 0, got -1"),
        (lambda: HnswConfig(M=1), "M must be at least 2 and at most 256, got 1"),
        (lambda: HnswConfig(M=257), "M must be at least 2 and at most 256, got 257"),
        (lambda: HnswConfig(ef_construction=0), "ef_construction must be at least 1 and at most 4096, got 0"),
        (lambda: HnswConfig(ef_construction=4097), "ef_construction must be at least 1 and at most 4096, got 4097"),
        (lambda: SearchParams(nprobe=0), "nprobe must be at least 1, got 0"),
        (lambda: SearchParams(ef_search=-5), "ef_search must be at least 1, got -5"),
        (
            lambda: fit(IvfConfig(nlist=1000), vectors(17), 17, 0),
            "nlist must be at most the 17 items of the sample, got 1000: take fewer lists",
        ),
        (lambda: fit(FlatConfig(), vectors(0), 0, 0), "sample must hold at least 1 item, got 0"),
        (
            lambda: fit(IvfConfig(), torch.tensor([[0.0], [torch.nan]]), 2, 0),
            "sample must be finite, got NaN or infinity in row 1",
        ),
        (
            lambda: build(fit(FlatConfig(), vectors(5), 5, 0), [vectors(3), vectors(2) / 0]),
            "vectors must be finite, got NaN or infinity in row 0",
        ),
        (
            lambda: build(fit(FlatConfig(), vectors(5), 5, 0), [torch.ones(2, 7)]),
            "vectors must have the 8 numbers of an indexed vector, got 7",
        ),
        (
            lambda: build(fit(FlatConfig(storage="fp16"), vectors(5), 5, 0), [vectors(5) * 1e6]),
            "vectors must fit the storage of the index, got one that is read back as infinite",
        ),
        (
            lambda: build(fit(FlatConfig(storage="sq8"), 6e38 * torch.eye(8).double() - 3e38, 8, 0), [torch.eye(8)]),
            "vectors must fit the storage of the index, got one that is read back as infinite",
        ),
        (
            lambda: build(built(FlatConfig(), vectors(17)).data, [vectors(1)]),
            "fitted must be an index without items, got 17",
        ),
        (
            lambda: opened(FlatConfig(), vectors(5)).search(torch.ones(1, 9), SearchSpec(1)),
            "queries must have the 8 numbers of an indexed vector, got 9",
        ),
        (
            lambda: opened(IvfConfig(nlist=6), vectors(50)).search(vectors(1), SearchSpec(1), SearchParams(nprobe=7)),
            "nprobe must be at most the 6 lists of the index, got 7",
        ),
        (
            lambda: opened(FlatConfig(), vectors(5)).search(vectors(2), SearchSpec(1, torch.zeros(3))),
            "threshold must be one number for each of 2 queries, got 3",
        ),
    ],
)
def test_what_must_hold(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@kinds
def test_bytes_that_faiss_cannot_read(config: IndexConfig) -> None:
    data, error = built(config, vectors(30))
    for num in (0, 3, 40, len(data) // 2, len(data) - 1):
        with pytest.raises(
            DamagedError, match=f"an index must be what FAISS wrote, got {num} bytes that it cannot read"
        ):
            FaissIndex.read(data[:num], error)
    with pytest.raises(DamagedError, match=f"got {len(data) + 1} bytes that it cannot read"):
        FaissIndex.read(data + b"\0", error)
    with pytest.raises(DamagedError, match="an index must be what FAISS wrote, got 9 bytes that it cannot read"):
        build(b"no index.", [])


def written(index: Any) -> bytes:
    return faiss.serialize_index(index).tobytes()


def test_indexes_of_another_shape() -> None:
    with pytest.raises(ValueError, match="metric_type must be METRIC_INNER_PRODUCT, 0, got 1"):
        FaissIndex.read(written(faiss.IndexFlatL2(4)), 0.0)
    with pytest.raises(ValueError, match="an index must be flat, ivf or hnsw in fp32, fp16 or sq8, got an IndexPQ"):
        FaissIndex.read(written(faiss.IndexPQ(4, 2, 4, faiss.METRIC_INNER_PRODUCT)), 0.0)


def test_without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    data, error = built(FlatConfig(), vectors(3))
    monkeypatch.setitem(sys.modules, "faiss", None)
    for use in (
        lambda: fit(FlatConfig(), vectors(3), 3, 0),
        lambda: build(data, []),
        lambda: FaissIndex.read(data, error),
    ):
        with pytest.raises(
            UnsupportedError, match="needs the package faiss, which is not installed: install faiss-cpu"
        ):
            use()


def test_a_faiss_for_gpus_without_its_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its package raises when it is imported."""
    (tmp_path / "faiss.py").write_text('raise RuntimeError("nvidia-cuda-runtime-cu12 is missing.")')
    monkeypatch.delitem(sys.modules, "faiss")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedError, match=r"can be loaded, got an error \(nvidia-cuda-runtime-cu12 is missing\)"):
        fit(FlatConfig(), vectors(3), 3, 0)
