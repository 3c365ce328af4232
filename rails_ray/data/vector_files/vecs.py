"""`.fvecs`, `.bvecs` and `.ivecs`: before each row its width, an int32, then its float32, uint8 or int32 numbers.

Source: http://corpus-texmex.irisa.fr. All in little-endian order; all rows have the width of the first.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.data.vector_files.rows import ListFile, Read, VectorFile, check_shape, read_records
from rails_ray.data.vector_files.writing import Labelled

WIDTH = np.dtype("<i4")


def open_fvecs(path: Path, name: str | None = None) -> VectorFile:
    """The contract of `Reader`."""
    return VectorFile(**_opened(path, "<f4"))


def open_bvecs(path: Path, name: str | None = None) -> VectorFile:
    """The contract of `Reader`."""
    return VectorFile(**_opened(path, "u1"))


def open_ivecs(path: Path) -> ListFile:
    """Raises:
    ValueError: if the file is not of the format, or was cut off.
    """
    return ListFile(**_opened(path, "<i4"))


def _opened(path: Path, kind: str) -> dict[str, Any]:
    """The fields of the open file."""
    with path.open("rb") as file:
        head = file.read(WIDTH.itemsize)
    if len(head) < WIDTH.itemsize:
        raise ValueError(f"{path} must begin with the width of its first row, an int32, got {len(head)} bytes")
    width = int(np.frombuffer(head, WIDTH)[0])
    check_shape(1, width, str(path))
    record, size = _record(width, kind), path.stat().st_size
    if size % record.itemsize:
        raise ValueError(
            f"{path} must have a multiple of {record.itemsize} bytes, for rows of {width} numbers as in row 0, "
            f"got {size}: it was cut off, or its rows differ in width"
        )
    read = _read(path, record, width)
    return {"file": str(path), "num_rows": size // record.itemsize, "width": width, "read": read}


def _record(width: int, kind: str) -> np.dtype[Any]:
    return np.dtype([("width", WIDTH), ("row", kind, (width,))])


def _read(path: Path, record: np.dtype[Any], width: int) -> Read:
    def read(rows: int) -> Iterator[NDArray[Any]]:
        first = 0
        for block in read_records(path, record, 0, 1)(rows):
            widths = block["width"][:, 0]
            wrong = np.flatnonzero(widths != width)
            if len(wrong):
                raise ValueError(
                    f"{path} must hold rows of one width, {width} as in row 0, "
                    f"got {widths[wrong[0]]} in row {first + wrong[0]}"
                )
            yield block["row"][:, 0]
            first += len(block)

    return read


def write_fvecs(path: Path, width: int, blocks: Iterator[Labelled]) -> None:
    """The contract of `Writer`."""
    record = _record(width, "<f4")
    with path.open("wb") as file:
        for _, block in blocks:
            lines = np.empty(len(block), record)
            lines["width"], lines["row"] = width, block
            file.write(lines.data)
