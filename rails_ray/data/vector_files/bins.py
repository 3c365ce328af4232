"""`.fbin`, `.f16bin`, `.u8bin`, `.i8bin` and `.ibin`: the number of rows and their width, then the rows.

Source: https://big-ann-benchmarks.com. The two are int32, the rows float32, float16, uint8, int8 or int32, all in
little-endian order. The numbers are read as uint32 here: they are the same up to 2**31, and some corpora are larger.
A `.ibin` of neighbors may hold their distances behind them, as float32; they are passed over.
"""

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.data.vector_files.rows import ListFile, Read, VectorFile, check_shape, check_size, read_records
from rails_ray.data.vector_files.writing import Labelled

HEADER = struct.Struct("<II")
MOST_ROWS = 2**32 - 1


def open_bin(path: Path, name: str | None = None, *, kind: str) -> VectorFile:
    """The contract of `Reader`.

    Args:
        kind: NumPy's name for the type of the numbers.
    """
    num_rows, width = _header(path)
    dtype = np.dtype(kind)
    check_size(path, HEADER.size + num_rows * width * dtype.itemsize, f"{num_rows} rows of {width} {dtype}")
    read = read_records(path, dtype, HEADER.size, width)
    return VectorFile(file=str(path), num_rows=num_rows, width=width, read=read)


open_fbin, open_f16bin = partial(open_bin, kind="<f4"), partial(open_bin, kind="<f2")
open_u8bin, open_i8bin = partial(open_bin, kind="u1"), partial(open_bin, kind="i1")


def open_ibin(path: Path) -> ListFile:
    """Raises:
    ValueError: if the file is not of the format, or was cut off.
    """
    num_rows, width = _header(path)
    size_bytes = num_rows * width * 4
    if path.stat().st_size != HEADER.size + 2 * size_bytes:
        check_size(path, HEADER.size + size_bytes, f"{num_rows} rows of {width} int32")
    read = _first_rows(read_records(path, np.dtype("<i4"), HEADER.size, width), num_rows)
    return ListFile(file=str(path), num_rows=num_rows, width=width, read=read)


def _header(path: Path) -> tuple[int, int]:
    """Number of rows, and their width."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if len(head) < HEADER.size:
        raise ValueError(f"{path} must begin with the number of rows and their width, 8 bytes, got {len(head)}")
    num_rows, width = HEADER.unpack(head)
    check_shape(num_rows, width, str(path))
    return num_rows, width


def _first_rows(read_all: Read, num_rows: int) -> Read:
    def read(rows: int) -> Iterator[NDArray[Any]]:
        left = num_rows
        for block in read_all(rows):
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return

    return read


def write_fbin(path: Path, width: int, blocks: Iterator[Labelled]) -> None:
    """The contract of `Writer`."""
    num_rows = 0
    with path.open("wb") as file:
        file.write(HEADER.pack(0, width))
        for _, block in blocks:
            file.write(block.astype("<f4", copy=False).data)
            num_rows += len(block)
        if num_rows > MOST_ROWS:
            raise ValueError(f"a file of this format must hold at most {MOST_ROWS} rows, got {num_rows}")
        file.seek(0)
        file.write(HEADER.pack(num_rows, width))
