"""Arrays of Arrow as numpy's, and back, without a copy and without pandas.

`pyarrow.array` and `to_numpy` load pandas where it is installed, 28 MB, to ask whether values are its own.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

FEW = 16  # rows of which each is read sooner than `take` begins


def numbers_in(values: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The numbers of an array; several chunks are copied.

    Raises:
        pyarrow.ArrowInvalid: if one is null.
    """
    if values.null_count:
        raise pa.ArrowInvalid(f"numbers must have no nulls, got {values.null_count}")
    numbers: NDArray[Any] = np.from_dlpack(values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values)
    return numbers


def numbers_as_array(numbers: NDArray[Any]) -> pa.Array:
    """An array of numbers [N]."""
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, data])


def values_at(column: pa.ChunkedArray, rows: NDArray[np.int64]) -> list[Any]:
    """The values of a column at some rows, as Python's."""
    if len(rows) > FEW:
        found: list[Any] = column.take(numbers_as_array(rows)).to_pylist()
        return found
    return [column[row].as_py() for row in rows.tolist()]
