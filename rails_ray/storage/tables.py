"""Users' tables in Parquet: one file, or several files with the same columns, local or on S3.

A table is named by a file, by a folder or by a pattern:

    items.parquet          a file
    items                  a folder: all its files that end in .parquet; also a folder called items.parquet
    2026-*/items-*.parquet all files that fit; * and ? match within one name

Several files count as one table, in the order of their paths. A row is named by its file and its place there. Only the
columns that are asked for are read, a batch of rows at a time. `rows` has what is read whole.
"""

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rails_ray.errors import NotFoundError, StorageError
from rails_ray.storage.filesystem import Storage, local_path
from rails_ray.storage.rows import Rows, mapped

BUFFER_BYTES = 2**23  # read of a column at once, in place of all that a row group has
BATCH_ROWS = 2**16  # rows read at once: megabytes of short texts, 64 MB of vectors of 256 numbers
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
KINDS = {
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "boolean": pa.types.is_boolean,
    "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "list of integers": lambda kind: any(of(kind) for of in LISTS) and pa.types.is_integer(kind.value_type),
    "list of floats": lambda kind: any(of(kind) for of in LISTS) and pa.types.is_floating(kind.value_type),
    "list of lists of floats": lambda kind: (
        any(of(kind) for of in LISTS)
        and any(of(kind.value_type) for of in LISTS)
        and pa.types.is_floating(kind.value_type.value_type)
    ),
}
ID, INTEGER, TEXT = ("integer", "string"), ("integer",), ("string",)  # kinds that a column may have
NUMBER = ("integer", "float", "boolean")
INTEGERS, NUMBERS = ("list of integers",), ("list of floats", "list of integers")
Columns = Mapping[str, Sequence[str]]
"""Kinds (keys of `KINDS`) that each column may have."""
Types = dict[str, pa.DataType]


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of one file.

    first_row: place of the first row in the file.
    """

    table: pa.Table
    file: str
    first_row: int = 0

    def __getitem__(self, column: str) -> pa.ChunkedArray:
        return self.table[column]

    def at(self, row: int) -> int:
        """The place in the file of a row of the batch."""
        return self.first_row + row


@dataclass(frozen=True)
class FileRows:
    """Rows of a file of a table.

    tag: the state in which it was found.
    row_groups: rows of each row group.
    """

    path: str
    tag: str
    row_groups: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.row_groups)


@dataclass(frozen=True)
class Table:
    """A table, which other processes can read too.

    root: the storage of its files.
    paths: its files, in order.
    """

    root: str
    paths: tuple[str, ...]

    def batches(
        self, columns: Columns, optional: Columns | None = None, numbers: Sequence[int] | None = None
    ) -> Iterator[RowBatch]:
        """All rows, checked.

        Args:
            optional: columns that may be missing, in all files or in none.
            numbers: the files to read, by number; all if left out.

        Raises:
            NotFoundError: if a file is gone.
            ValueError: if a file is not Parquet, is empty, lacks a column, or has a column of another kind or with
                nulls.
        """
        storage, first = Storage(self.root), None
        for number in [0, *(number for number in numbers if number)] if numbers else range(len(self.paths)):
            path = self.paths[number]
            with _opened(storage, path) as (file, _):
                there = _checked(file, f"{storage}/{path}", columns, optional or {}, first)
                first = first or (f"{storage}/{path}", there)
                if numbers is None or number in numbers:
                    yield from _batches(file, f"{storage}/{path}", list(there))

    def read(
        self,
        columns: Columns,
        optional: Columns | None = None,
        changed: Callable[[RowBatch], pa.Table] = lambda batch: batch.table,
    ) -> Rows:
        """All rows, mapped into memory. Raises what `batches` does.

        Args:
            changed: makes what is kept of a batch; it keeps every row.
        """
        files, ends = list[str](), list[int]()

        def kept() -> Iterator[pa.Table]:
            for batch in self.batches(columns, optional):
                if not files or files[-1] != batch.file:
                    files.append(batch.file)
                    ends.append(ends[-1] if ends else 0)
                ends[-1] += batch.table.num_rows
                yield changed(batch)

        table = mapped(kept())
        return Rows(table, tuple(files), tuple(ends))

    def column_names(self, number: int = 0) -> list[str]:
        """The columns of a file, by its footer. Raises what `rows` does."""
        names: list[str] = self.schema(number).names
        return names

    def schema(self, number: int = 0) -> pa.Schema:
        """Return the names with their types."""
        with _opened(Storage(self.root), self.paths[number]) as (file, _):
            return file.schema_arrow

    def rows(self, number: int) -> FileRows:
        """Read what a file holds, by its footer.

        Raises:
            NotFoundError: if it is gone.
            ValueError: if it is not Parquet.
        """
        with _opened(Storage(self.root), self.paths[number]) as (file, tag):
            return FileRows(self.paths[number], tag, tuple(_sizes(file)))

    def part(
        self, files: Sequence[FileRows], first_row: int, num_rows: int, columns: Sequence[str]
    ) -> Iterator[RowBatch]:
        """Some consecutive rows of the table, in batches. Only their row groups are read.

        Args:
            files: as `rows` gave them.

        Raises:
            StorageError: if a file has changed since then.
        """
        storage, start = Storage(self.root), 0
        for found in files:
            first, end = max(first_row - start, 0), min(first_row + num_rows - start, found.num_rows)
            start += found.num_rows
            if first >= end:
                continue
            with _opened(storage, found.path, found.tag) as (file, _):
                yield from _between(file, f"{storage}/{found.path}", columns, first, end)
            with storage.open(found.path) as (_, tag):
                _check_tag(storage, found.path, found.tag, tag)


def find(place: str) -> Table:
    """The table of a file, a folder or a pattern.

    Args:
        place: absolute, or s3://bucket/path.

    Raises:
        NotFoundError: if there is none.
    """
    place = local_path(place)
    root, _, name = place.rstrip("/").rpartition("/")
    if root.endswith(":/"):
        raise NotFoundError(f"{place} must name a file, a folder or a pattern in the bucket, got the bucket alone")
    root = root or "/"
    if any(mark in place for mark in "*?"):
        return _fitting(place)
    if Storage(root).exists(name):
        return Table(root, (name,))
    paths = tuple(f"{name}/{file}" for file in Storage(root).list(name) if file.endswith(".parquet"))
    if not paths:
        raise NotFoundError(f"{place} must exist, got no such file, and no folder of Parquet files of this name")
    return Table(root, paths)


def _fitting(place: str) -> Table:
    """The files that fit a pattern."""
    fixed, names = place, list[str]()
    while any(mark in fixed for mark in "*?"):
        fixed, _, name = fixed.rpartition("/")
        names.insert(0, name)
    fixed = fixed or "/"
    storage, paths = Storage(fixed), [""]
    for name in names:
        paths = [
            f"{path}/{found}".lstrip("/")
            for path in paths
            for found in storage.list(path or ".")
            if fnmatch.fnmatchcase(found, name.replace("[", "[[]"))  # a bracket stands for itself
        ]
    paths = [path for path in paths if storage.exists(path)]
    if not paths:
        raise NotFoundError(f"{place} must fit a file, got none")
    return Table(fixed, tuple(paths))


@contextmanager
def _opened(storage: Storage, path: str, tag: str | None = None) -> Iterator[tuple[pq.ParquetFile, str]]:
    """A Parquet file and its state.

    Raises:
        NotFoundError: if there is no such file.
        StorageError: if its state is not `tag`.
        ValueError: if it is not Parquet.
    """
    with storage.open(path) as (raw, found):
        if tag is not None:
            _check_tag(storage, path, tag, found)
        try:
            # Pre-buffered, it would keep all that it has read.
            file = pq.ParquetFile(pa.PythonFile(raw, mode="r"), buffer_size=BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{storage}/{path} must be a Parquet file, got: {error}") from None
        yield file, found


def _check_tag(storage: Storage, path: str, expected: str, found: str) -> None:
    if found != expected:
        raise StorageError(
            f"{storage}/{path} must stay as it is while it is read, got a change: run it again when it is complete"
        )


def _checked(
    file: pq.ParquetFile,
    name: str,
    columns: Columns,
    optional: Columns,
    first: tuple[str, Types] | None,
) -> Types:
    """The types of the columns to read.

    Args:
        first: name and columns of the table's first file; None if this is the first.
    """
    schema = file.schema_arrow
    there = {}
    for column, kinds in {**columns, **optional}.items():
        if column not in schema.names:
            is_needed = column in columns or (first is not None and column in first[1])
            if not is_needed:
                continue
            like = "" if column in columns or first is None else f" as {first[0]} has"
            raise ValueError(
                f"{name} must have a column {column!r}{like}, got {', '.join(schema.names) or 'no column'}"
            )
        there[column] = schema.field(column).type
        _check_kind(there[column], column, name, kinds)
        if first is not None:
            _check_like(there[column], column, name, first)
    if not file.metadata.num_rows:
        raise ValueError(f"{name} must hold at least 1 row, got an empty table")
    return there


def _check_kind(kind: pa.DataType, column: str, name: str, kinds: Sequence[str]) -> None:
    if not any(KINDS[allowed](kind) for allowed in kinds):
        raise ValueError(f"column {column!r} of {name} must be of type {' or '.join(kinds)}, got {kind}")


def _check_like(kind: pa.DataType, column: str, name: str, first: tuple[str, Types]) -> None:
    """The kinds of two files must be the same; their widths may differ."""
    before = first[1].get(column)
    if before is None:
        raise ValueError(f"{first[0]} must have a column {column!r} as {name} has, got {', '.join(first[1])}")
    if any(KINDS[own](kind) != KINDS[own](before) for own in KINDS):
        raise ValueError(f"column {column!r} of {name} must be of type {before} as in {first[0]}, got {kind}")


def _batches(file: pq.ParquetFile, name: str, columns: list[str]) -> Iterator[RowBatch]:
    first_row = 0
    for batch in _tables(file, name, columns):
        for column in columns:
            if batch[column].null_count:
                row = first_row + batch[column].is_null().to_pylist().index(True)
                raise ValueError(f"column {column!r} of {name} must have a value in every row, got null in row {row}")
        yield RowBatch(batch, name, first_row)
        first_row += batch.num_rows


def _sizes(file: pq.ParquetFile) -> list[int]:
    """Rows of each row group."""
    return [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]


def _between(file: pq.ParquetFile, name: str, columns: Sequence[str], first: int, end: int) -> Iterator[RowBatch]:
    """The rows first .. end - 1 of a file."""
    sizes = _sizes(file)
    ends = np.cumsum(sizes)
    groups = [number for number, size in enumerate(sizes) if ends[number] - size < end and ends[number] > first]
    place = int(ends[groups[0]] - sizes[groups[0]])
    for batch in _tables(file, name, list(columns), groups):
        skipped = max(first - place, 0)
        wanted = batch.slice(skipped, max(end - place - skipped, 0))
        if wanted.num_rows:
            yield RowBatch(wanted, name, place + skipped)
        place += batch.num_rows
        if place >= end:
            return


def _tables(file: pq.ParquetFile, name: str, columns: list[str], groups: list[int] | None = None) -> Iterator[pa.Table]:
    try:
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns):
            yield pa.table(batch).select(columns)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{name} must be a Parquet file, got: {error}") from None
