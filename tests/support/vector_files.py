"""Vectors, and the same vectors in files that were made by hand or by the tool whose format it is."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import h5py
import numpy as np

from rails_ray.data.vector_files.formats import open_vectors

WITHOUT_IDS = ["npy", "fvecs", "fbin", "hdf5", "h5"]


def rows(num_rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num_rows, width)).astype(np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def cut(vectors: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (vectors[first : first + size] for first in range(0, len(vectors), size))


def read(path: Path | str, block: int | None = None, **options: Any) -> np.ndarray:
    blocks = list(open_vectors(str(path), **options).blocks(block))
    assert all(own.dtype == np.float32 and own.flags.c_contiguous and 0 < len(own) <= (block or 1e9) for own in blocks)
    return np.concatenate(blocks)


def as_fvecs(vectors: np.ndarray) -> bytes:
    return b"".join(struct.pack(f"<i{len(row)}f", len(row), *row) for row in vectors)


def as_fbin(vectors: np.ndarray) -> bytes:
    numbers = [number for row in vectors for number in row]
    return struct.pack(f"<ii{len(numbers)}f", *vectors.shape, *numbers)


def as_ivecs(lists: np.ndarray) -> bytes:
    return b"".join(struct.pack(f"<i{len(row)}i", len(row), *row) for row in lists.tolist())


def as_ibin(lists: np.ndarray) -> bytes:
    numbers = lists.reshape(-1).tolist()
    return struct.pack(f"<ii{len(numbers)}i", *lists.shape, *numbers)


def as_faiss(vectors: np.ndarray, ids: list[int] | None = None) -> bytes:
    index = faiss.IndexFlatIP(vectors.shape[1])
    if ids is None:
        index.add(vectors)
    else:
        index = faiss.IndexIDMap(index)
        index.add_with_ids(vectors, np.array(ids))
    return faiss.serialize_index(index).tobytes()


def by_numpy(path: Path) -> np.ndarray:
    return np.load(path, allow_pickle=False)


def by_hdf5(path: Path) -> np.ndarray:
    with h5py.File(path) as file:
        assert set(file) == {"train"}
        return file["train"][:]


def wide(num_rows: int, width: int) -> np.ndarray:
    """As `rows` in one call takes too long."""
    return np.zeros((num_rows, width), np.float32)
