"""`.npy`, NumPy's array: a header in text, then the rows.

Source: numpy.lib.format, versions 1 to 3. Arrays of objects are refused, as reading one would run what it says.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format

from rails_ray.data.vector_files.rows import VectorFile, check_array, check_size, read_records
from rails_ray.data.vector_files.writing import Labelled

HEADERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}  # 3 is for names of fields


def open_npy(path: Path, name: str | None = None) -> VectorFile:
    """The contract of `Reader`."""
    with path.open("rb") as file:
        shape, is_fortran, dtype = _header(file, path)
        offset = file.tell()
    check_array(shape, dtype, str(path))
    num_rows, width = shape
    if is_fortran and min(shape) > 1:
        raise ValueError(
            f"{path} must hold row after row, got Fortran order, column after column: "
            "save numpy.ascontiguousarray(vectors)"
        )
    opened = VectorFile(file=str(path), num_rows=num_rows, width=width, read=read_records(path, dtype, offset, width))
    check_size(path, offset + math.prod(shape) * dtype.itemsize, f"{num_rows} rows of {width} {dtype}")
    return opened


def _header(file: BinaryIO, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type."""
    try:
        read_header = HEADERS[npy_format.read_magic(file)]
        shape, is_fortran, dtype = read_header(file)
    except KeyError as error:
        raise ValueError(
            f"{path} must be of version 1.0 or 2.0 of .npy, got {error}: save it with numpy.save"
        ) from None
    except (ValueError, EOFError, SyntaxError, TokenError) as error:
        raise ValueError(f"{path} must be an array of numpy.save, got: {error}") from None
    return shape, is_fortran, dtype


def write_npy(path: Path, width: int, blocks: Iterator[Labelled]) -> None:
    """The contract of `Writer`."""
    with path.open("wb") as file:
        _write_header(file, 0, width)
        num_rows = 0
        for _, block in blocks:
            file.write(block.astype("<f4", copy=False).data)
            num_rows += len(block)
        file.seek(0)
        _write_header(file, num_rows, width)  # of the same length: NumPy leaves room for the number of rows to grow


def _write_header(file: BinaryIO, num_rows: int, width: int) -> None:
    npy_format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (num_rows, width)})
