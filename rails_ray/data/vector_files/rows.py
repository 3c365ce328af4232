"""An open file: rows of one width, read in blocks.

Axes: n rows of a block, d width of a row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.storage.plain_values import BadValueError
from rails_ray.storage.rows import Rows, check_distinct
from rails_ray.storage.values import ID

MOST_WIDTH = 65_536  # numbers that a request's `embedding` may have; a header in another byte order says far more
BLOCK_ROWS, BLOCK_BYTES = 65_536, 2**23  # of a block, unless the caller wants another

Read = Callable[[int], Iterator[NDArray[Any]]]  # the rows as they are stored, at most so many at a time


def rows_within(size_bytes: int, width: int) -> int:
    """How many rows of float32 fit: at least 1, at most `BLOCK_ROWS`."""
    return min(max(size_bytes // (4 * width), 1), BLOCK_ROWS)


@dataclass(frozen=True, kw_only=True)
class RowFile:
    """
    file: its name, for messages.
    read: gives the rows as they are stored.
    distance: what the file says of its distance ("angular", "euclidean", "dot", ...); None if it says nothing.
    """

    file: str
    num_rows: int
    width: int
    read: Read
    distance: str | None = None

    def __post_init__(self) -> None:
        check_shape(self.num_rows, self.width, self.file)

    def _stored(self, rows: int | None) -> Iterator[tuple[int, NDArray[Any]]]:
        """The first row of each block, and the block as it is stored."""
        if rows is not None and rows < 1:
            raise ValueError(f"rows of a block must be at least 1, got {rows}")
        done = 0
        for block in self.read(rows or rows_within(BLOCK_BYTES, self.width)):
            yield done, block
            done += len(block)
        if done != self.num_rows:
            raise ValueError(f"{self.file} must keep its {self.num_rows} rows while it is read, got only {done}")


@dataclass(frozen=True, kw_only=True)
class ListFile(RowFile):
    """Lists of integers, all of one length: the nearest items of each query, by their rows."""

    def blocks(self, rows: int | None = None) -> Iterator[NDArray[np.int64]]:
        """Blocks [n, d] of at most `rows` lists; by default, of 8 MiB."""
        for first, block in self._stored(rows):
            if block.dtype.kind == "u" and block.max(initial=0) > np.iinfo(np.int64).max:
                row = first + int(np.argwhere(block > np.iinfo(np.int64).max)[0, 0])
                raise ValueError(f"{self.file} must hold integers below 2**63, got {block.max()} in row {row}")
            yield np.ascontiguousarray(block, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class VectorFile(RowFile):
    """Vectors, and what the same file holds beside them.

    ids: int64, uint64 or large_string, distinct; None if the file has none: then ids are the row numbers.
    queries, truth: queries and the nearest rows of each, if the file has them.
    """

    ids: pa.ChunkedArray | None = None
    queries: "VectorFile | None" = None
    truth: ListFile | None = None

    def blocks(self, rows: int | None = None) -> Iterator[NDArray[np.float32]]:
        """Blocks [n, d] of at most `rows` rows; by default, of 8 MiB and at most 65,536 rows.

        Raises:
            ValueError: if a number is not finite in float32, or the file has changed since it was opened.
        """
        for first, block in self._stored(rows):
            yield to_float32(block, first, self.file)


def to_float32(block: NDArray[Any], first: int, file: str) -> NDArray[np.float32]:
    """The block [n, d] in float32; the same array if it is that already.

    Args:
        first: number of its first row, for the message.

    Raises:
        ValueError: if a number is not finite.
    """
    with np.errstate(over="ignore"):
        narrow: NDArray[np.float32] = np.ascontiguousarray(block, dtype=np.float32)
    if not np.isfinite(narrow).all():
        row, column = np.argwhere(~np.isfinite(narrow))[0]
        raise ValueError(
            f"{file} must hold numbers that are finite in float32, got {block[row, column]} in row {first + row}"
        )
    return narrow


def to_ids(ids: Any, file: str) -> pa.ChunkedArray:
    """Ids as int64, uint64 or large_string.

    Args:
        ids: an Arrow array, or any sequence.

    Raises:
        ValueError: if they are neither integers nor strings, do not fit, or one is missing.
    """
    try:
        column = ids if isinstance(ids, pa.ChunkedArray) else pa.chunked_array([ids])
        column = pa.chunked_array([ID.read(column.combine_chunks())])
    except BadValueError as error:
        where = "" if error.row is None else f" in row {error.row}"
        raise ValueError(f"ids of {file} must {error.must}, got {error.got}{where}") from None
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"ids of {file} must be integers of 64 bits or strings, got: {error}") from None
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise ValueError(f"ids of {file} must have a value in every row, got null in row {row}")
    return column


def check_ids(ids: pa.ChunkedArray, num_rows: int, file: str) -> None:
    """Raises:
    ValueError: unless there is an id for each row, and no two are the same.
    """
    if len(ids) != num_rows:
        raise ValueError(f"{file} must have an id for each of its {num_rows} rows, got {len(ids)}")
    check_distinct(Rows(pa.table({"id": ids}), (file,), (num_rows,)), "id")


def check_shape(num_rows: int, width: int, file: str) -> None:
    """Raises:
    ValueError: if there is no row, or no vector is that wide.
    """
    if num_rows < 1:
        raise ValueError(f"{file} must hold at least 1 row, got {num_rows}")
    if not 1 <= width <= MOST_WIDTH:
        raise ValueError(
            f"{file} must hold rows of 1 to {MOST_WIDTH} numbers, got a width of {width}: "
            "check its format and its byte order"
        )


def check_array(shape: tuple[int, ...], dtype: np.dtype[Any], file: str) -> None:
    """Raises:
    ValueError: unless an array of this shape and type is rows of numbers.
    """
    if dtype.kind not in "fiu":
        raise ValueError(f"{file} must hold integers or floats, got the type {dtype}")
    if len(shape) != 2:
        raise ValueError(f"{file} must be of two dimensions, rows and their width, got the shape {shape}")


def check_size(path: Path, expected: int, what: str) -> None:
    """Raises:
    ValueError: if the file has another size than its header says.
    """
    size = path.stat().st_size
    if size != expected:
        why = "it was cut off" if size < expected else "check its format"
        raise ValueError(f"{path} must have {expected} bytes, for {what}, got {size}: {why}")


def read_records(path: Path, dtype: np.dtype[Any], offset: int, per_row: int) -> Read:
    """Reads rows of `per_row` records from a file, from byte `offset` to its end.

    A memory map would count every page that was read as this process's memory, and end the process if the file
    became shorter meanwhile.
    """

    def read(rows: int) -> Iterator[NDArray[Any]]:
        with path.open("rb") as file:
            file.seek(offset)
            while len(block := np.fromfile(file, dtype, rows * per_row)) >= per_row:
                yield block[: len(block) // per_row * per_row].reshape(-1, per_row)

    return read
