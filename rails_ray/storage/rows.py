"""A table that was read whole: where each row stands, whether ids are distinct, ids that name rows of another table.

It lies in a file that is mapped into memory and has no name: what is not in use takes no memory, and processes leave
nothing behind.
"""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rails_ray.errors import StorageError


@dataclass(frozen=True)
class Rows:
    """Columns that were read of a table.

    files, ends: its files, and the number of rows up to the end of each.
    num_null: nulls that were read as empty texts, by column.
    """

    table: pa.Table
    files: tuple[str, ...]
    ends: tuple[int, ...]
    num_null: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, column: str) -> pa.ChunkedArray:
        return self.table[column]

    def __contains__(self, column: str) -> bool:
        return column in self.table.column_names

    def where(self, row: int) -> tuple[str, int]:
        """The file of a row, and its place there."""
        number = int(np.searchsorted(self.ends, row, side="right"))
        return self.files[number], row - (self.ends[number - 1] if number else 0)

    def per_file(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of some rows are in each file."""
        return np.bincount(np.searchsorted(self.ends, rows, side="right"), minlength=len(self.files))

    @property
    def name(self) -> str:
        """The table in messages: its file, or its first file."""
        return self.files[0]


def mapped(tables: Iterable[pa.Table]) -> pa.Table:
    """Tables, one after the other, in a file that is mapped into memory. The types are those of the first.

    Raises:
        StorageError: if the folder for temporary files has no room.
        ValueError: if a number does not fit the type of the first table's column.
    """
    with tempfile.NamedTemporaryFile(prefix="rails-ray-", suffix=".arrow") as file:
        try:
            _write_all(tables, file.name)
        except OSError as error:
            raise StorageError(
                f"{tempfile.gettempdir()} must have room for the columns that are read, got: "
                f"{error.strerror or error}: free some space, or set TMPDIR to another folder"
            ) from None
        return pa.ipc.open_file(pa.memory_map(file.name)).read_all()  # the mapping outlives the file's name


def _write_all(tables: Iterable[pa.Table], path: str) -> None:
    writer: Any = None
    with pa.OSFile(path, "wb") as sink:
        for table in tables:
            if writer is None:
                schema = table.schema
                writer = pa.ipc.new_file(sink, schema)
            writer.write_table(with_types(table, schema))
        if writer is None:
            raise ValueError("a table must hold at least 1 row, got none that can be read")
        writer.close()


def with_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the types of another with the same columns, such as the first of several.

    Raises:
        ValueError: if a number does not fit its type.
    """
    try:
        return table if table.schema == schema else table.cast(schema)
    except pa.ArrowInvalid as error:
        raise ValueError(f"all files of a table must have columns of one type, got: {error}") from None


def check_distinct(rows: Rows, column: str) -> None:
    """Raises:
    ValueError: if an id occurs in two rows.
    """
    counts = pc.value_counts(rows[column].drop_null())
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        value = repeated[0]["values"]
        _, again, *_ = np.flatnonzero(pc.equal(rows[column], value).to_numpy())
        raise repeated_id(column, value.as_py(), *rows.where(int(again)))


def repeated_id(column: str, value: str | int, file: str, row: int) -> ValueError:
    """The error for an id that occurs in two rows of a table."""
    return ValueError(
        f"column {column!r} of {file} must hold distinct ids, got {value!r} again in row {row}: leave out one of them"
    )


def rows_of(references: Rows, known: Rows, column: str) -> NDArray[np.int64]:
    """The row in `known` of each id in a column of both tables.

    Raises:
        ValueError: if an id is unknown.
    """
    found = find_rows(references, known, column)
    lost = np.flatnonzero(found < 0)
    if len(lost):
        file, row = references.where(int(lost[0]))
        value = references[column][int(lost[0])].as_py()
        raise ValueError(
            f"column {column!r} of {file} must hold ids of {known.name}, got {value!r} in row {row}: mend the id, or "
            "leave the row out"
        )
    return found


def find_rows(references: Rows, known: Rows, column: str) -> NDArray[np.int64]:
    """The row in `known` of each id in a column of both tables; -1 for an unknown one and for null.

    Integers are found among texts that write them in the usual way, and the other way round: "7", but not "007".
    """
    ids, known_ids = _alike(references[column], known[column])
    found = pc.index_in(ids, value_set=known_ids, skip_nulls=True)
    return np.asarray(found.fill_null(-1).to_numpy(), dtype=np.int64)


def _alike(ids: pa.ChunkedArray, known: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Two columns of ids as one type; integers that do not fit it are null."""
    if ids.type == known.type:
        return ids, known
    if pa.types.is_integer(ids.type) and pa.types.is_integer(known.type):
        return _signed(ids), _signed(known)
    return ids.cast(pa.large_string()), known.cast(pa.large_string())


def _signed(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    if ids.type == pa.uint64():
        ids = pc.if_else(pc.less(ids, pa.scalar(2**63, pa.uint64())), ids, None)
    return ids.cast(pa.int64())
