"""Opens and writes files of vectors, and opens files of lists of integers, by the ending of their names.

| format                     | vectors       | ids that it holds    | lists of neighbors |
|----------------------------|---------------|----------------------|--------------------|
| `npy`, `fvecs`, `fbin`     | read, written |                      |                    |
| `bvecs`                    | read          |                      |                    |
| `f16bin`, `u8bin`, `i8bin` | read          |                      |                    |
| `ivecs`, `ibin`            |               |                      | read               |
| `parquet`                  | read, written | integers and strings |                    |
| `hdf5`, `h5`               | read, written |                      | read               |
| `faiss`, `index`           | read, written | integers             |                    |

A vector without an id has its row number for one.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rails_ray.data.vector_files import Reader, Writer, bins, hdf5, npy, parquet, vecs
from rails_ray.data.vector_files import faiss_file as faiss_index
from rails_ray.data.vector_files.rows import ListFile, VectorFile, to_ids
from rails_ray.data.vector_files.writing import Holds, checked, labelled, whole_file
from rails_ray.errors import NotFoundError
from rails_ray.paths import expanded
from rails_ray.storage.filesystem import local_path

READERS: dict[str, Reader] = {
    "npy": npy.open_npy,
    "fvecs": vecs.open_fvecs,
    "bvecs": vecs.open_bvecs,
    "fbin": bins.open_fbin,
    "f16bin": bins.open_f16bin,
    "u8bin": bins.open_u8bin,
    "i8bin": bins.open_i8bin,
    "parquet": parquet.open_parquet,
    "hdf5": hdf5.open_hdf5,
    "h5": hdf5.open_hdf5,
    "faiss": faiss_index.open_faiss,
    "index": faiss_index.open_faiss,
}
WRITERS: dict[str, tuple[Writer, Holds]] = {
    "npy": (npy.write_npy, Holds.NONE),
    "fvecs": (vecs.write_fvecs, Holds.NONE),
    "fbin": (bins.write_fbin, Holds.NONE),
    "parquet": (parquet.write_parquet, Holds.ALL),
    "hdf5": (hdf5.write_hdf5, Holds.NONE),
    "h5": (hdf5.write_hdf5, Holds.NONE),
    "faiss": (faiss_index.write_faiss, Holds.INTEGERS),
    "index": (faiss_index.write_faiss, Holds.INTEGERS),
}
LIST_READERS: dict[str, Callable[[Path], ListFile]] = {
    "ivecs": vecs.open_ivecs,
    "ibin": bins.open_ibin,
    "hdf5": hdf5.open_neighbors,
    "h5": hdf5.open_neighbors,
}
NAMED = {"parquet", "hdf5", "h5"}  # formats that name their vectors


def open_vectors(path: str, *, name: str | None = None, format: str | None = None) -> VectorFile:
    """A file of vectors, its header checked.

    Args:
        name: column of Parquet (default: vector) or data set of HDF5 (default: train).
        format: a key of `READERS`; None for what the file's ending says.

    Raises:
        NotFoundError: if there is no such file.
        ValueError: if the format is unknown, or the file is not of it.
    """
    format = format_of(path, READERS, "vectors are read from", format)
    if name is not None and format not in NAMED:
        raise ValueError(f"name must be left out for .{format}, which holds one array without a name, got {name!r}")
    return READERS[format](_existing(path), name)


def open_lists(path: str, *, format: str | None = None) -> ListFile:
    """A file of lists of integers: the nearest items of each query.

    Args:
        format: a key of `LIST_READERS`; None for what the file's ending says.

    Raises:
        NotFoundError: if there is no such file.
        ValueError: if the format is unknown, or the file is not of it.
    """
    format = format_of(path, LIST_READERS, "lists of neighbors are read from", format)
    return LIST_READERS[format](_existing(path))


def write_vectors(
    path: str, width: int, blocks: Iterable[NDArray[Any]], ids: Any = None, *, format: str | None = None
) -> None:
    """Write vectors, in place of a file that is there; if it fails, that file stays.

    Args:
        blocks: rows [n, width] of any type of number, written as float32.
        ids: of all rows, distinct: an Arrow array or any sequence of integers or strings; None for the row numbers.
        format: a key of `WRITERS`; None for what the file's ending says.

    Raises:
        ValueError: if the format is unknown or cannot hold the ids, or a row is not finite numbers of this width.
    """
    of_all = None if ids is None else to_ids(ids, path)
    export_vectors(path, width, labelled(blocks, of_all, path), format=format)


def export_vectors(
    path: str, width: int, blocks: Iterable[tuple[Any, NDArray[Any]]], *, format: str | None = None
) -> None:
    """As `write_vectors`, of pairs: the ids of a block, or None, and its rows [n, width]. Raises what that does."""
    write, holds = WRITERS[format_of(path, WRITERS, "vectors are written as", format)]
    with whole_file(_local(path)) as part:
        write(part, width, checked(blocks, width, holds, path))


def format_of(path: str, known: Iterable[str], what: str, format: str | None = None) -> str:
    """The format of a file: the one given, or the one that its ending says.

    Args:
        what: begins the message: "vectors are read from", say.

    Raises:
        ValueError: if it is none of the known ones.
    """
    found = Path(path).suffix.removeprefix(".").lower() if format is None else format
    if found not in known:
        endings = ", ".join(f".{ending}" for ending in known)
        raise ValueError(f"{what} {endings}, got {path if format is None else format!r}: choose one of these formats")
    return found


def _existing(path: str) -> Path:
    """Raises:
    NotFoundError: if there is no such file.
    ValueError: if it is a folder or a pipe, say.
    """
    found = _local(path)
    if not found.exists():
        raise NotFoundError(f"{path} must exist, got no such file")
    if not found.is_file():
        raise ValueError(f"{path} must be a file, got {'a folder' if found.is_dir() else 'something else'}")
    return found


def _local(path: str) -> Path:
    path = local_path(path)
    if "://" in path:
        raise ValueError(f"{path} must be a file of this machine: copy it here first")
    return expanded(path)
