"""Writing of vectors: blocks of vectors and their ids, checked; a file that appears whole or not at all.

Axes: n rows of a block, d width of a row.
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.data.vector_files.rows import check_array, check_ids, check_shape, to_float32, to_ids

LARGEST_ID = 2**63 - 1  # of formats whose ids are signed


class Labelled(NamedTuple):
    """A block [n, d], and the ids of its rows; None if they are the row numbers."""

    ids: pa.ChunkedArray | None
    vectors: NDArray[np.float32]


class Holds(Enum):
    """Which ids a format can hold."""

    NONE = "no ids"
    INTEGERS = "integers alone"
    ALL = "integers and strings"


def labelled(
    blocks: Iterable[NDArray[Any]], ids: pa.ChunkedArray | None, file: str
) -> Iterator[tuple[pa.ChunkedArray | None, NDArray[Any]]]:
    """Each block with its part of the ids of all rows.

    Raises:
        ValueError: if there are more or fewer ids than rows.
    """
    first = 0
    for block in blocks:
        yield None if ids is None else ids.slice(first, len(block)), block
        first += len(block)
    if ids is not None and len(ids) > first:
        raise ValueError(f"ids of {file} must be one for each of its {first} rows, got {len(ids)}")


def checked(blocks: Iterable[tuple[Any, NDArray[Any]]], width: int, holds: Holds, file: str) -> Iterator[Labelled]:
    """The blocks as a format can hold them; ids are distinct when the last block was taken.

    Args:
        blocks: ids (None, an Arrow array or any sequence) and vectors [n, d] of any type of number.
        file: its name, for messages.

    Raises:
        ValueError: if there is no row, a row has another width or is not finite, or the format cannot hold the ids.
    """
    check_shape(1, width, file)
    known: list[pa.ChunkedArray] = []
    first = 0
    for given, block in blocks:
        if block.ndim != 2 or block.shape[1] != width:
            raise ValueError(f"{file} must hold rows of {width} numbers, got the shape {block.shape} in row {first}")
        check_array(block.shape, block.dtype, file)
        if not len(block):
            continue
        if first and (given is None) != (not known):
            raise ValueError(f"ids of {file} must be there for all blocks or for none, got a change at row {first}")
        ids = None if given is None else to_ids(given, file)
        if ids is not None:
            _check_like(ids, known, len(block), first, file)
            _check_held(ids, holds, first, file)
            known.append(ids)
        yield Labelled(None if holds is Holds.NONE else ids, to_float32(block, first, file))
        first += len(block)
    check_shape(first, width, file)
    if known and holds is not Holds.NONE:
        check_ids(pa.chunked_array([chunk for ids in known for chunk in ids.chunks]), first, file)


def _check_like(ids: pa.ChunkedArray, known: list[pa.ChunkedArray], num_rows: int, first: int, file: str) -> None:
    if len(ids) != num_rows:
        raise ValueError(f"ids of {file} must be one for each row, got {len(ids)} for {num_rows} rows at row {first}")
    if known and ids.type != known[0].type:
        raise ValueError(f"ids of {file} must all be of the type {known[0].type}, got {ids.type} at row {first}")


def _check_held(ids: pa.ChunkedArray, holds: Holds, first: int, file: str) -> None:
    """Raises:
    ValueError: if the format cannot hold the ids of rows from `first` on.
    """
    remedy = "write .parquet, or give no ids and keep them elsewhere, in the order of the rows"
    is_large = ids.type == pa.uint64() and (pc.max(ids).as_py() or 0) > LARGEST_ID
    if holds is not Holds.ALL and is_large:
        raise ValueError(
            f"ids of {file} must be at most {LARGEST_ID}, as its format holds no larger ones, got "
            f"{pc.max(ids).as_py()}: {remedy}"
        )
    if holds is Holds.NONE and not ids.cast(pa.int64() if pa.types.is_integer(ids.type) else ids.type).equals(
        to_ids(np.arange(first, first + len(ids)), file)
    ):
        raise ValueError(
            f"ids of {file} must be its row numbers, as its format holds no ids, got {ids[0].as_py()!r} in row "
            f"{first}: {remedy}"
        )
    if holds is Holds.INTEGERS and not pa.types.is_integer(ids.type):
        raise ValueError(
            f"ids of {file} must be integers, as its format holds no others, got {ids[0].as_py()!r} in row {first}: "
            f"{remedy}"
        )


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A hidden file beside `path`, which replaces it at the end unless something was raised."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
