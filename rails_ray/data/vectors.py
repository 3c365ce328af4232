"""Columns of vectors: checked batch by batch, and mapped into memory from a file without a name.

Axes: Q rows, P vectors of a row, D width of a vector.
"""

import math
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.errors import StorageError
from rails_ray.storage.parquet_files import RowBatch
from rails_ray.storage.plain_values import is_list
from rails_ray.storage.tables import Table
from rails_ray.storage.values import VECTOR, Kind

KEEP_ZEROS = "--zero-vectors keep (of train: --data.zero-vectors keep)"
MEND = "mend the row, or leave it out"


@dataclass(frozen=True)
class VectorShape:
    """The shape of a row, as the first row of a table that has a vector has it.

    sizes: (D,), or (P, D) if a row is several vectors.
    file, row: where that row is.
    """

    sizes: tuple[int, ...]
    file: str
    row: int = 0

    @staticmethod
    def of(table: Table, column: str, kind: Kind = VECTOR) -> "VectorShape":
        """The shape of a column's rows.

        Args:
            kind: the kind that the column may have.

        Raises:
            ValueError: if the first row that is not null is no vector, or all are null.
        """
        for batch in table.batches({column: kind}, batch_rows=64):
            places = np.flatnonzero(batch[column].is_valid().to_numpy())
            if len(places):
                break
        else:
            raise ValueError(f"column {column!r} of {table.name} must hold a vector in some row, got null in all")
        first, row = batch[column][int(places[0])].as_py(), batch.at(int(places[0]))
        is_several = bool(first) and isinstance(first[0], list)
        sizes: tuple[int, ...] = (len(first), len(first[0])) if is_several else (len(first),)
        if not all(sizes):
            raise ValueError(f"column {column!r} of {batch.file} must hold at least 1 number, got none in row {row}")
        return VectorShape(sizes, batch.file, row)


def vectors_of(batch: RowBatch, column: str, shape: VectorShape) -> NDArray[np.float32]:
    """The vectors of a batch [Q, *shape].

    Raises:
        ValueError: if a row has another shape, a null, or a number that is not finite in float32.
    """
    values, num_rows = batch[column].combine_chunks(), len(batch[column])
    is_several = is_list(values.type.value_type)
    if is_several != (len(shape.sizes) > 1):
        names = ["a vector in every row", "several vectors in every row"]
        must, got = names if is_several else reversed(names)
        raise ValueError(
            f"column {column!r} of {batch.file} must hold {must} as row {shape.row} of {shape.file}, got {got}"
        )
    for depth, size in enumerate(shape.sizes):
        check_numbers(batch, column, values, np.arange(num_rows + 1) * math.prod(shape.sizes[:depth]))
        lengths = pc.list_value_length(values).to_numpy()
        wrong = np.flatnonzero(lengths != size)
        if len(wrong):
            row = int(wrong[0]) // math.prod(shape.sizes[:depth])
            what = "numbers" if depth == len(shape.sizes) - 1 else "vectors"
            like = "" if batch.file == shape.file else f" of {shape.file}"
            raise ValueError(
                f"column {column!r} of {batch.file} must hold {size} {what} in every row as in row {shape.row}{like}, "
                f"got {lengths[wrong[0]]} in row {batch.at(row)}: {MEND}"
            )
        values = pc.list_flatten(values)
    starts = np.arange(num_rows + 1) * math.prod(shape.sizes)
    return finite(batch, column, values, starts).reshape(-1, *shape.sizes)


def finite(batch: RowBatch, column: str, values: pa.Array, starts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Numbers of a batch in float32.

    Args:
        starts: where the numbers of each row begin.

    Raises:
        ValueError: if a number is null or not finite.
    """
    check_numbers(batch, column, values, starts)
    numbers = values.to_numpy()
    with np.errstate(over="ignore"):
        narrow: NDArray[np.float32] = numbers.astype(np.float32, copy=False)
    wrong = np.flatnonzero(~np.isfinite(narrow))
    if len(wrong):
        raise ValueError(
            f"column {column!r} of {batch.file} must hold numbers that are finite in float32, "
            f"got {numbers[wrong[0]]} in row {batch.at(row_of(starts, wrong[0]))}: {MEND}"
        )
    return narrow


def check_numbers(batch: RowBatch, column: str, values: pa.Array, starts: NDArray[np.int64]) -> None:
    """Raises:
    ValueError: if a number is null.
    """
    if values.null_count:
        place = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]
        row = batch.at(row_of(starts, place))
        raise ValueError(f"column {column!r} of {batch.file} must hold numbers, got null in row {row}: {MEND}")


def row_of(starts: NDArray[np.int64], place: np.integer) -> int:
    """The row of a number."""
    return int(np.searchsorted(starts, place, side="right")) - 1


def mapped(blocks: Iterable[NDArray[np.float32]], shape: VectorShape) -> NDArray[np.float32]:
    """Blocks of vectors, one after the other, mapped into memory [Q, *shape].

    Raises:
        StorageError: if the folder for temporary files has no room.
    """
    with tempfile.TemporaryFile(prefix="rails-ray-") as file:
        try:
            for block in blocks:
                file.write(np.ascontiguousarray(block).data)
            file.flush()
        except OSError as error:
            raise StorageError(
                f"{tempfile.gettempdir()} must have room for the vectors that are read, got: "
                f"{error.strerror or error}: free some space, or set TMPDIR to another folder"
            ) from None
        return np.memmap(file, dtype=np.float32, mode="r").reshape(-1, *shape.sizes)


def zero_rows(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Rows of vectors of zeros, which have no direction; of several vectors each [Q, P, D], one of them suffices."""
    return np.flatnonzero(~vectors.any(axis=-1).reshape(len(vectors), -1).all(axis=1))


def check_directions(what: str, num_zero: int, num_rows: int, first: object, keep: str = KEEP_ZEROS) -> None:
    """Check that vectors have directions.

    Args:
        what: names the rows.
        first: the id of the first row with a vector of zeros.
        keep: the option that keeps such rows.

    Raises:
        ValueError: if there is such a row.
    """
    if num_zero:
        raise ValueError(
            f"vectors of {what} must hold a number other than 0 in float32, as a cosine compares directions, got zeros "
            f"for {num_zero:,} of {num_rows:,}, the first of them {first!r}: leave them out, or keep them with {keep}"
        )


def as_column(vectors: NDArray[np.float32]) -> pa.FixedSizeListArray:
    """Vectors [Q, D], or several vectors each [Q, P, D], as a column."""
    values = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    for size in reversed(vectors.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values
