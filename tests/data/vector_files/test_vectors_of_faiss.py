"""Vectors and ids out of indexes of FAISS."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from rails_ray.data.vector_files.formats import open_vectors
from support.vector_files import as_faiss, read, rows

WIDTH, NUM_ROWS = 8, 300


def written_index(path: Path, index: Any, vectors: np.ndarray, ids: np.ndarray | None = None) -> Path:
    index.train(vectors)
    if ids is None:
        index.add(vectors)
    else:
        index.add_with_ids(vectors, ids)
    faiss.write_index(index, str(path))
    return path


@pytest.mark.parametrize(
    ("description", "error"),
    [
        ("Flat", 0),
        ("IVF4,Flat", 0),
        ("HNSW8", 0),
        ("PQ4x4,RFlat", 0),
        ("OPQ4,Flat", 1e-5),
        ("OPQ4,IVF4,Flat", 1e-5),
        ("SQ8", 0.03),
        ("IVF4,SQ8", 0.03),
        ("HNSW8,SQ8", 0.03),
        ("SQfp16", 2e-3),
        ("PQ4x4", 4),
        ("IVF4,PQ4x4", 4),
    ],
)
@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_vectors_that_an_index_gives_back(tmp_path: Path, description: str, error: float, metric: str) -> None:
    vectors = rows(NUM_ROWS, WIDTH)
    kind = {"dot": faiss.METRIC_INNER_PRODUCT, "euclidean": faiss.METRIC_L2}[metric]
    path = written_index(tmp_path / "v.faiss", faiss.index_factory(WIDTH, description, kind), vectors)
    opened = open_vectors(str(path))
    assert (opened.num_rows, opened.width, opened.ids, opened.distance) == (NUM_ROWS, WIDTH, None, metric)
    assert np.abs(read(path, 7) - vectors).max() <= error
    assert np.abs(read(path) - vectors).mean() <= error / 4


@pytest.mark.parametrize("description", ["IDMap,Flat", "IDMap2,SQ8", "IVF4,Flat", "IDMap,IVF4,Flat", "OPQ4,IVF4,Flat"])
def test_ids_of_an_index(tmp_path: Path, description: str) -> None:
    vectors = rows(NUM_ROWS, WIDTH)
    ids = np.random.default_rng(1).permutation(NUM_ROWS) * 3 + 7
    path = written_index(tmp_path / "v.index", faiss.index_factory(WIDTH, description), vectors, ids)
    opened = open_vectors(str(path))
    assert opened.ids is not None
    found = dict(zip(opened.ids.to_pylist(), np.concatenate(list(opened.blocks(7))), strict=True))
    assert sorted(found) == sorted(ids.tolist())
    assert max(np.abs(found[number] - vector).max() for number, vector in zip(ids, vectors, strict=True)) < 0.03


@pytest.mark.parametrize(
    ("description", "kind"),
    [("LSH", "IndexLSH"), ("IVF4,PQ4x4fs", "IndexIVFPQFastScan"), ("PCA4,IVF4,PQ4x4fs", "IndexIVFPQFastScan")],
)
def test_an_index_that_does_not_give_vectors_back(tmp_path: Path, description: str, kind: str) -> None:
    path = written_index(tmp_path / "v.faiss", faiss.index_factory(WIDTH, description), rows(NUM_ROWS, WIDTH))
    with pytest.raises(
        ValueError, match=rf"must be an index that gives its vectors back \(IndexFlat, .*\), got {kind}:"
    ):
        open_vectors(str(path))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("OPQ4,Flat", r"must be a whole index of FAISS, got \[\(299, 8\), \(299, 8\)\] and 300 vectors within it"),
        ("IVF4,Flat", "must have 299 vectors in its lists, got 300"),
    ],
)
def test_an_index_that_miscounts_its_vectors(tmp_path: Path, description: str, message: str) -> None:
    path = written_index(tmp_path / "v.faiss", faiss.index_factory(WIDTH, description), rows(NUM_ROWS, WIDTH))
    index = faiss.read_index(str(path))
    index.ntotal -= 1
    faiss.write_index(index, str(path))
    with pytest.raises(ValueError, match=message):
        open_vectors(str(path))


def test_an_index_with_ids_of_two_kinds(tmp_path: Path) -> None:
    inner = faiss.index_factory(WIDTH, "IVF4,Flat")
    index = faiss.IndexIDMap(inner)
    path = written_index(tmp_path / "v.faiss", index, rows(NUM_ROWS, WIDTH), np.arange(NUM_ROWS))
    inner.reset()
    inner.add_with_ids(rows(NUM_ROWS, WIDTH), np.arange(NUM_ROWS) + 9)
    faiss.write_index(index, str(path))
    with pytest.raises(ValueError, match="must have one map of ids, got an IndexIDMap over an IVF with ids of its own"):
        open_vectors(str(path))


def test_an_id_of_an_index_twice(tmp_path: Path) -> None:
    ids = np.arange(NUM_ROWS) // 2
    path = written_index(tmp_path / "v.faiss", faiss.index_factory(WIDTH, "IVF4,Flat"), rows(NUM_ROWS, WIDTH), ids)
    with pytest.raises(ValueError, match=r"column 'id' of .*v.faiss must hold distinct ids, got . again in row"):
        open_vectors(str(path))


def test_reading_an_index_leaves_the_limits_of_faiss_as_they_were(tmp_path: Path) -> None:
    before = faiss.get_deserialization_vector_byte_limit()
    (tmp_path / "v.faiss").write_bytes(as_faiss(rows(2, 3)))
    open_vectors(str(tmp_path / "v.faiss"))
    assert faiss.get_deserialization_vector_byte_limit() == before
