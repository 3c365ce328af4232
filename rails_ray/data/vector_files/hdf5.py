"""`.hdf5`, `.h5`: data sets `train` (items), and perhaps `test` (queries) and `neighbors` (rows of `train`).

Source: https://github.com/erikbern/ann-benchmarks. The attribute `distance` says by what the neighbors are nearest:
"angular", "euclidean", "dot" and others. `distances` is passed over. What is written is `train` alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.data.vector_files.optional import optional
from rails_ray.data.vector_files.rows import ListFile, Read, VectorFile, check_array
from rails_ray.data.vector_files.writing import Labelled

ITEMS, QUERIES, NEIGHBORS = "train", "test", "neighbors"


def open_hdf5(path: Path, name: str | None = None) -> VectorFile:
    """The contract of `Reader`; `name` is a data set. `train` comes with its queries and their neighbors."""
    with _opened(path) as file:
        there = set() if name else {QUERIES, NEIGHBORS} & set(file)
    queries = VectorFile(**_fields(path, QUERIES)) if QUERIES in there else None
    truth = open_neighbors(path) if NEIGHBORS in there else None
    return VectorFile(**_fields(path, name or ITEMS), queries=queries, truth=truth)


def open_neighbors(path: Path) -> ListFile:
    """Raises:
    ValueError: if the file is not HDF5, or has no data set of neighbors.
    """
    return ListFile(**_fields(path, NEIGHBORS))


def _fields(path: Path, name: str) -> dict[str, Any]:
    """The fields of an open data set."""
    with _opened(path) as file:
        found = file.get(name)
        if found is None or not hasattr(found, "shape"):
            raise ValueError(f"{path} must have a data set {name!r}, got {', '.join(file) or 'none'}")
        check_array(found.shape, found.dtype, f"{name!r} of {path}")
        if name == NEIGHBORS and found.dtype.kind == "f":
            raise ValueError(f"{name!r} of {path} must hold integers, got the type {found.dtype}")
        num_rows, width = found.shape
        distance = file.attrs.get("distance")
        distance = distance.decode() if isinstance(distance, bytes) else distance
    name_of_distance = None if distance is None else str(distance)
    return {
        "file": f"{name!r} of {path}",
        "num_rows": num_rows,
        "width": width,
        "read": _read(path, name, num_rows),
        "distance": name_of_distance,
    }


def _read(path: Path, name: str, num_rows: int) -> Read:
    def read(rows: int) -> Iterator[NDArray[Any]]:
        with _opened(path) as file:
            for first in range(0, num_rows, rows):
                yield file[name][first : first + rows]

    return read


def write_hdf5(path: Path, width: int, blocks: Iterator[Labelled]) -> None:
    """The contract of `Writer`."""
    h5py = optional("h5py", "h5py", path)
    with h5py.File(path, "w") as file:
        written = file.create_dataset(ITEMS, (0, width), np.float32, maxshape=(None, width), chunks=True)
        for _, block in blocks:
            written.resize(len(written) + len(block), axis=0)
            written[-len(block) :] = block


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    h5py = optional("h5py", "h5py", path)
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, LookupError, MemoryError) as error:  # a damaged file may give any of these
        raise ValueError(f"{path} must be a whole HDF5 file, got: {error}") from None
