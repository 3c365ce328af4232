"""`.faiss`, `.index`: an index that FAISS has written, with the vectors that it can give back.

A flat index gives the vectors that were added. What a scalar quantizer or PQ has stored is decoded, and a transform
(OPQ) is undone. FAISS holds the index in memory while it is read; it can map files, but a damaged one then ends the
process.

What is written is a flat index for inner products, in a map of ids if there are ids, byte for byte as FAISS does. It is
written here, because FAISS would hold all vectors in memory.

Source: faiss/impl/index_write.cpp, IndexFlatIP ("IxFI") and IndexIDMap ("IxMp").
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data.vector_files.optional import optional
from rails_ray.data.vector_files.rows import Read, VectorFile, check_ids, check_shape, to_ids
from rails_ray.data.vector_files.writing import Labelled

# Each of these gives a stored vector back. Others refuse, or end the process (IndexIVFPQFastScan of faiss 1.15).
DECODED = {
    *("IndexFlat", "IndexFlatIP", "IndexFlatL2", "IndexScalarQuantizer", "IndexPQ"),
    *("IndexIVFFlat", "IndexIVFScalarQuantizer", "IndexIVFPQ"),
    *("IndexHNSWFlat", "IndexHNSWSQ", "IndexRefineFlat"),
}
IDS = {"IndexIDMap", "IndexIDMap2"}
IVF = "IndexIVF"  # how their names begin
TRANSFORM = "IndexPreTransform"

INNER_PRODUCT = 0  # faiss.METRIC_INNER_PRODUCT
UNUSED = 1 << 20  # what FAISS writes in place of two fields that it no longer has
HEADER = struct.Struct("<4siqqqBi")  # kind, d, number of vectors, two unused fields, is trained, metric


def open_faiss(path: Path, name: str | None = None) -> VectorFile:
    """The contract of `Reader`."""
    faiss = optional("faiss", "faiss-cpu", path)
    index = _load(faiss, path)
    check_shape(index.ntotal, index.d, str(path))
    ids, inner = None, index
    if type(index).__name__ in IDS:
        ids, inner = faiss.vector_to_array(index.id_map), faiss.downcast_index(index.index)
    base = faiss.downcast_index(inner.index) if type(inner).__name__ == TRANSFORM else inner
    _check_whole(index, inner, base, path)
    keys = _keys(faiss, base, path)
    if keys is not None and ids is not None:
        raise ValueError(f"{path} must have one map of ids, got an IndexIDMap over an IVF with ids of its own")
    column = None if keys is None and ids is None else to_ids(ids if keys is None else keys, str(path))
    if column is not None:
        check_ids(column, index.ntotal, str(path))
    return VectorFile(
        file=str(path),
        num_rows=index.ntotal,
        width=index.d,
        read=_read(index, inner, keys, path),  # index, too, as it owns the inner one
        ids=column,
        distance={faiss.METRIC_INNER_PRODUCT: "dot", faiss.METRIC_L2: "euclidean"}.get(index.metric_type),
    )


def _load(faiss: Any, path: Path) -> Any:
    """The index, from a file that may claim any size of itself."""
    if not path.stat().st_size:
        raise ValueError(f"{path} must be a whole index of FAISS, got an empty file")
    most = faiss.get_deserialization_vector_byte_limit()
    faiss.set_deserialization_vector_byte_limit(path.stat().st_size)  # no array in a file is larger than the file
    try:
        return faiss.read_index(str(path))
    except (RuntimeError, MemoryError) as error:
        raise ValueError(f"{path} must be a whole index of FAISS, got: {_why(error)}") from None
    finally:
        faiss.set_deserialization_vector_byte_limit(most)


def _check_whole(index: Any, inner: Any, base: Any, path: Path) -> None:
    """Raises:
    ValueError: if an index within another holds other vectors, or the innermost cannot give them back.
    """
    kind = type(base).__name__
    if kind not in DECODED:
        raise ValueError(
            f"{path} must be an index that gives its vectors back ({', '.join(sorted(DECODED))}), got {kind}: "
            "export the vectors where they come from"
        )
    shapes = [(one.ntotal, one.d) for one in (index, inner)]
    if shapes[0] != shapes[1] or base.ntotal != index.ntotal:
        raise ValueError(f"{path} must be a whole index of FAISS, got {shapes} and {base.ntotal} vectors within it")


def _keys(faiss: Any, base: Any, path: Path) -> NDArray[np.int64] | None:
    """Return the ids that the index gives its vectors; None if it is the row number. An IVF can look them up
    afterwards."""
    if not type(base).__name__.startswith(IVF):
        return None
    lists = base.invlists
    sizes = {number: lists.list_size(number) for number in range(base.nlist)}
    if sum(sizes.values()) != base.ntotal:
        raise ValueError(f"{path} must have {base.ntotal} vectors in its lists, got {sum(sizes.values())}")
    stored = [faiss.rev_swig_ptr(lists.get_ids(number), size) for number, size in sizes.items() if size]
    keys: NDArray[np.int64] = np.sort(np.concatenate(stored))
    if np.array_equal(keys, np.arange(base.ntotal)):
        base.make_direct_map()
        return None
    base.set_direct_map_type(faiss.DirectMap.Hashtable)
    return keys


def _read(index: Any, inner: Any, keys: NDArray[np.int64] | None, path: Path) -> Read:
    def read(rows: int) -> Iterator[NDArray[Any]]:
        for first in range(0, index.ntotal, rows):
            last = min(first + rows, index.ntotal)
            try:
                yield inner.reconstruct_batch(np.arange(first, last) if keys is None else keys[first:last])
            except RuntimeError as error:
                raise ValueError(f"{path} must give its vectors back, got: {_why(error)}") from None

    return read


def _why(error: Exception) -> str:
    """The message of FAISS without the function and the line that raised it."""
    return re.sub(r".*\.cpp:\d+: (Error: )?", "", str(error))


def write_faiss(path: Path, width: int, blocks: Iterator[Labelled]) -> None:
    """The contract of `Writer`."""
    ids: list[pa.ChunkedArray] = []
    num_rows = 0
    with path.open("wb") as file:
        for known, block in blocks:
            if not num_rows:
                _write_head(file, 0, width, known is not None)
            file.write(block.astype("<f4", copy=False).data)
            num_rows += len(block)
            ids += [] if known is None else [known]
        if ids:
            file.write(struct.pack("<Q", num_rows))
            for known in ids:
                file.write(known.to_numpy().astype("<i8", copy=False).data)
        file.seek(0)
        _write_head(file, num_rows, width, bool(ids))


def _write_head(file: BinaryIO, num_rows: int, width: int, has_ids: bool) -> None:
    for kind in (b"IxMp", b"IxFI") if has_ids else (b"IxFI",):
        file.write(HEADER.pack(kind, width, num_rows, UNUSED, UNUSED, True, INNER_PRODUCT))
    file.write(struct.pack("<Q", num_rows * width))
