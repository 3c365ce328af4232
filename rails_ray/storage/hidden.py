"""Hidden rows of a part: items that were deleted, or that a newer row of a delta replaces.

They are a set, in an object of its own: a part is never changed, and two deletions in any order give the same set.

    objects/<sha256>    row: int32, ascending, each once; row 0 is the first item of the part
"""

import io
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rails_ray.errors import DamagedError
from rails_ray.storage import parquet
from rails_ray.storage.described import Encoded, HiddenEntry, PartEntry
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import read_file, write_object
from rails_ray.storage.numbers import numbers_in

NO_ROWS = np.empty(0, np.int64)


def write(storage: Storage, rows: NDArray[np.integer]) -> HiddenEntry:
    """Store hidden rows of a part, in any order."""
    distinct = np.unique(rows)
    sink = io.BytesIO()
    pq.write_table(pa.table({"row": pa.array(distinct.astype(np.int32))}), sink, compression="zstd")
    return HiddenEntry(**asdict(write_object(storage, sink.getvalue())), num_items=len(distinct))


def read(storage: Storage, described: Encoded, part: PartEntry) -> NDArray[np.int64]:
    """The hidden rows of a part, ascending.

    Raises:
        DamagedError: if their file is missing or changed, or names a row that the part lacks.
    """
    if part.hidden is None:
        return NO_ROWS
    try:
        table = parquet.read_plain(io.BytesIO(read_file(storage, described.home, part.hidden)))
        rows = numbers_in(table["row"]).astype(np.int64)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DamagedError(f"{part.hidden.path} must hold the hidden rows of a part, got: {error}") from None
    if len(rows) != part.hidden.num_items or (len(rows) and not 0 <= rows[0] <= rows[-1] < part.num_items):
        raise DamagedError(
            f"{part.hidden.path} must hide {part.hidden.num_items} of the {part.num_items} rows of {part.path}, got "
            f"{len(rows)} rows up to {rows.max(initial=-1)}: restore it"
        )
    return rows


def live_rows(storage: Storage, described: Encoded, part: PartEntry) -> NDArray[np.int64] | None:
    """The rows of a part that are not hidden, ascending; None if none is. Raises what `read` does."""
    if part.hidden is None:
        return None
    return np.delete(np.arange(part.num_items), read(storage, described, part))


def of_rows(storage: Storage, described: Encoded, parts: Sequence[PartEntry]) -> NDArray[np.int64]:
    """The hidden rows of parts that are read one after the other, counted from the first. Raises what `read` does."""
    found, first = [NO_ROWS], 0
    for part in parts:
        found.append(read(storage, described, part) + first)
        first += part.num_items
    return np.concatenate(found)
