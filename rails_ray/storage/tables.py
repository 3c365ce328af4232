"""Users' tables in Parquet: one file, or several files, which `table_places` finds.

A row is named by its file and its place there. Only the columns that are needed are read, a batch of rows at a time.
`rows` has what is read whole.

A folder NAME=VALUE on the way to a file is a column of its rows, as Hive and Spark write it. `values` says which types
a column may have; files of one table may differ in them, and in optional columns.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet_files import FileRows, Footer, RowBatch, check_tag, opened, partitions, sizes
from rails_ray.storage.plain_values import BadValueError
from rails_ray.storage.rows import Rows, mapped
from rails_ray.storage.values import Columns, Kind, common_type

BATCH_ROWS = 2**16  # rows read at once: megabytes of short texts, 64 MB of vectors of 256 numbers
INTEGER_TEXT = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Table:
    """A table, which other processes can read too.

    root: the storage of its files.
    paths: its files, in order.
    folder: what all paths begin with; folders below it may give columns.
    renamed: the column that is read in place of another, by the name of that.
    left_out: other files of its folder that are no part of it.
    shown: what messages call each file, if it was made of another; else their paths.
    """

    root: str
    paths: tuple[str, ...]
    folder: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()

    @cached_property
    def footers(self) -> tuple[Footer, ...]:
        """The columns of each file, as its end says them.

        Raises:
            NotFoundError: if a file is gone.
            ValueError: if a file is not Parquet.
        """
        found = list[Footer]()
        for number in range(len(self.paths)):
            footer = self.footer(number)
            if found and footer.schema.equals(found[-1].schema, check_metadata=True):
                footer = replace(footer, schema=found[-1].schema)  # one object travels once
            found.append(footer)
        return tuple(found)

    def only(self, numbers: Sequence[int]) -> "Table":
        """The table of some of its files."""
        shown = tuple(self.shown[number] for number in numbers) if self.shown else ()
        return replace(self, paths=tuple(self.paths[number] for number in numbers), shown=shown)

    @cached_property
    def readable(self) -> tuple[tuple[Footer, ...], tuple[str, ...]]:
        """The footers of the files that are Parquet, and a sentence on each file that is not."""
        try:
            return self.footers, ()
        except ValueError:
            found, wrong = list[Footer](), list[str]()
        for number in range(len(self.paths)):
            try:
                found.append(self.footer(number))
            except ValueError as error:
                wrong.append(str(error))
        return tuple(found), tuple(wrong)

    def footer(self, number: int) -> Footer:
        """The columns of a file, as its end says them. Raises what `footers` does."""
        storage, path = Storage(self.root), self.paths[number]
        with opened(storage, path) as (file, _):
            schema, num_rows = (
                (pa.schema([]), 0) if file is None else (file.schema_arrow.remove_metadata(), file.metadata.num_rows)
            )
        return Footer(self._shown(number), schema, num_rows, partitions(path.removeprefix(self.folder)))

    @property
    def name(self) -> str:
        """The table in messages: its file, or its first file."""
        return self._shown(0)

    def _shown(self, number: int) -> str:
        return self.shown[number] if self.shown else f"{Storage(self.root)}/{self.paths[number]}"

    @cached_property
    def column_names(self) -> list[str]:
        """The columns that a file has, of all files with rows, in their order. Raises what `footers` does."""
        return list(dict.fromkeys(name for footer in self.footers if footer.num_rows for name in footer.columns))

    def __contains__(self, column: str) -> bool:
        """Return whether a file has a column, under its name or another that stands for it."""
        return any(self.column_in(footer, column) is not None for footer in self.footers if footer.num_rows)

    def column_in(self, footer: Footer, column: str) -> str | None:
        """The name in a file of a column: the one that was given for it, its own, or one that differs in case.

        Raises:
            ValueError: if several differ in case alone.
        """
        there, given = footer.columns, self.renamed.get(column)
        for name in (given, column):
            if name in there:
                return name
        alike = [name for name in there if name.casefold() == (given or column).casefold()]
        if len(alike) > 1:
            raise ValueError(
                f"{footer.name} must have one column {column!r}, got {', '.join(alike)}: name it by "
                f"--data.columns {column}={alike[0]}"
            )
        return alike[0] if alike else None

    def types(self, columns: Columns, optional: Columns | None = None) -> Mapping[str, pa.DataType]:
        """The types as which columns are read; optional ones only if a file has them. Raises what `batches` does, as
        far as footers say it."""
        return _Reading.of(self, columns, optional or {}).types

    def batches(
        self,
        columns: Columns,
        optional: Columns | None = None,
        numbers: Sequence[int] | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> Iterator[RowBatch]:
        """All rows, checked.

        Args:
            optional: columns that may be missing; where a file lacks one that another has, its values are null.
            numbers: the files to read, by number; all if left out.
            batch_rows: most rows of a batch.

        Raises:
            NotFoundError: if a file is gone.
            ValueError: if no file has a row, or one is not Parquet, lacks a column, or has a column of another kind or
                with nulls.
        """
        read = replace(_Reading.of(self, columns, optional or {}), batch_rows=batch_rows)
        storage = Storage(self.root)
        for number in range(len(self.paths)) if numbers is None else numbers:
            if self.footers[number].num_rows:
                with opened(storage, self.paths[number]) as (file, _):
                    yield from read.all_rows(file, self.footers[number])

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
        files, ends, num_null = list[str](), list[int](), dict[str, int]()

        def kept() -> Iterator[pa.Table]:
            for batch in self.batches(columns, optional):
                if not files or files[-1] != batch.file:
                    files.append(batch.file)
                    ends.append(ends[-1] if ends else 0)
                ends[-1] += batch.table.num_rows
                for name, number in batch.num_null.items():
                    num_null[name] = num_null.get(name, 0) + number
                yield changed(batch)

        table = mapped(kept())
        return Rows(table, tuple(files), tuple(ends), num_null)

    def rows(self, number: int) -> FileRows:
        """Read what a file holds, by its footer.

        Raises:
            NotFoundError: if it is gone.
            ValueError: if it is not Parquet.
        """
        with opened(Storage(self.root), self.paths[number]) as (file, tag):
            return FileRows(self.paths[number], tag, () if file is None else tuple(sizes(file)))

    def part(
        self,
        files: Sequence[FileRows],
        first_row: int,
        num_rows: int,
        columns: Columns,
        optional: Columns | None = None,
    ) -> Iterator[RowBatch]:
        """Some consecutive rows of the table, in batches. Only their row groups are read.

        Args:
            files: as `rows` gave them.

        Raises:
            StorageError: if a file has changed since then.
            ValueError: as `batches`.
        """
        read, storage, start = _Reading.of(self, columns, optional or {}), Storage(self.root), 0
        for number, found in enumerate(files):
            first, end = max(first_row - start, 0), min(first_row + num_rows - start, found.num_rows)
            start += found.num_rows
            if first >= end:
                continue
            with opened(storage, found.path, found.tag) as (file, _):
                yield from read.between(file, self.footers[number], first, end)
            with storage.open(found.path) as (_, tag):
                check_tag(storage, found.path, found.tag, tag)


@dataclass(frozen=True)
class _Reading:
    """Columns of a table, each read as one type from all files."""

    table: Table
    kinds: Columns
    types: Mapping[str, pa.DataType]
    batch_rows: int = BATCH_ROWS

    @staticmethod
    def of(table: Table, columns: Columns, optional: Columns) -> "_Reading":
        """Raises:
        ValueError: as `Table.batches`.
        """
        footers = [footer for footer in table.footers if footer.num_rows]
        if not footers:
            raise ValueError(f"{table.name} must hold at least 1 row, got an empty table")
        kinds = {name: kind for name, kind in {**columns, **optional}.items() if name in columns or name in table}
        for footer in footers:
            for name in columns:
                if table.column_in(footer, name) is None:
                    given = f" to read as {name!r}" if name in table.renamed else ""
                    raise ValueError(
                        f"{footer.name} must have a column {table.renamed.get(name, name)!r}{given}, got "
                        f"{', '.join(footer.columns) or 'no column'}: rename one of them, or train "
                        f"with --data.columns {name}=COLUMN"
                    )
        return _Reading(table, kinds, {name: _type_of(table, footers, name, kind) for name, kind in kinds.items()})

    def all_rows(self, file: pq.ParquetFile, footer: Footer) -> Iterator[RowBatch]:
        """The rows of a file."""
        first_row = 0
        for batch in self._batches(file, footer, None):
            yield self._checked(batch, footer, first_row)
            first_row += batch.num_rows
        if first_row != footer.num_rows:
            raise _short(footer, footer.num_rows, first_row)

    def between(self, file: pq.ParquetFile, footer: Footer, first: int, end: int) -> Iterator[RowBatch]:
        """The rows first .. end - 1 of a file."""
        num_rows = sizes(file)
        ends = np.cumsum(num_rows)
        groups = [number for number, size in enumerate(num_rows) if ends[number] - size < end and ends[number] > first]
        if not groups:
            raise _short(footer, end, sum(num_rows))
        place = int(ends[groups[0]] - num_rows[groups[0]])
        short = replace(self, batch_rows=min(self.batch_rows, end - place))  # what follows the rows is not decoded
        for batch in short._batches(file, footer, groups):
            skipped = max(first - place, 0)
            wanted = batch.slice(skipped, max(end - place - skipped, 0))
            if wanted.num_rows:
                yield self._checked(wanted, footer, place + skipped)
            place += batch.num_rows
            if place >= end:
                return
        raise _short(footer, end, place)

    def _batches(self, file: pq.ParquetFile, footer: Footer, groups: list[int] | None) -> Iterator[pa.RecordBatch]:
        names = (self.table.column_in(footer, name) for name in self.kinds)
        stored = [name for name in names if name in footer.schema.names]
        try:
            yield from file.iter_batches(self.batch_rows, row_groups=groups, columns=list(dict.fromkeys(stored)))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(
                f"{footer.name} must be a Parquet file, got: {error}: write it again, or take it out of the data"
            ) from None

    def _checked(self, batch: pa.RecordBatch, footer: Footer, first_row: int) -> RowBatch:
        found, num_null = {}, dict[str, int]()
        for column, kind in self.kinds.items():
            values = self._values(batch, footer, column, first_row)
            if kind.is_filled:
                num_null[column] = values.null_count
                values = kind.filled(values)
            elif values.null_count and not kind.keeps_nulls:
                row = first_row + values.is_null().to_pylist().index(True)
                raise ValueError(
                    f"column {self._shown(footer, column)} must have a value in every row, got null in row {row}: give "
                    "it one, or leave the row out"
                )
            found[column] = values
        return RowBatch(pa.table(found), footer.name, first_row, num_null)

    def _values(self, batch: pa.RecordBatch, footer: Footer, column: str, first_row: int) -> pa.Array:
        """A column of a batch as its type."""
        name, kind, wanted = self.table.column_in(footer, column), self.kinds[column], self.types[column]
        if name is None:
            return pa.nulls(batch.num_rows, wanted)
        if name not in footer.schema.names:
            [value] = _partition(self.table.footers, name, kind, footer.partitions[name]).cast(wanted)
            return pa.repeat(value, batch.num_rows)
        place = batch.schema.get_field_index(name)
        try:
            values = kind.read(batch.column(place), batch.schema.field(place).metadata)
        except BadValueError as error:
            where = "" if error.row is None else f" in row {first_row + error.row}"
            raise ValueError(
                f"column {self._shown(footer, column)} must {error.must}, got {error.got}{where}"
            ) from None
        if values.type == wanted or (pa.types.is_nested(wanted) and not pa.types.is_null(values.type)):
            return values
        try:
            return values.cast(wanted)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"column {self._shown(footer, column)} must hold {wanted} as other files of its table do, got: {error}"
            ) from None

    def _shown(self, footer: Footer, column: str) -> str:
        return f"{self.table.column_in(footer, column) or column!r} of {footer.name}"


def _short(footer: Footer, expected: int, got: int) -> ValueError:
    """The error for a file with fewer rows, or more, than its footer says: a byte of it is wrong, or it has changed."""
    return ValueError(f"{footer.name} must hold the {expected:,} rows of its footer, got {got:,}: write it again")


def _type_of(table: Table, footers: Sequence[Footer], column: str, kind: Kind) -> pa.DataType:
    """The type as which all files' values of a column are read.

    Raises:
        ValueError: if a file has another kind, or files go together as no type.
    """
    types, former = dict[pa.DataType, str](), None
    for footer in footers:
        name = table.column_in(footer, column)
        if name is None or (name in footer.schema.names and footer.schema is former):
            continue
        former = footer.schema
        if name in footer.schema.names:
            found = footer.schema.field(name)
            if not pa.types.is_null(found.type):
                types.setdefault(_checked_type(kind, found, footer), footer.name)
        elif footer.partitions[name] is not None:
            types.setdefault(_partition(footers, name, kind, footer.partitions[name]).type, footer.name)
    if all(map(pa.types.is_nested, types)):
        return next(iter(types), kind.empty)
    common = common_type(types)
    if common is None:
        (first, file), (other, another) = list(types.items())[:2]
        raise ValueError(f"column {column!r} of {another} must be of type {first} as in {file}, got {other}")
    if types and pa.types.is_null(common):
        return _integer_type(table, footers, column)
    return common if types else kind.empty


def _checked_type(kind: Kind, column: pa.Field, footer: Footer) -> pa.DataType:
    try:
        return kind.type_of(column)
    except BadValueError as error:
        raise ValueError(f"column {column.name!r} of {footer.name} must {error.must}, got {error.got}") from None


def _partition(footers: Sequence[Footer], name: str, kind: Kind, value: str | None) -> pa.Array:
    """The value that a folder gives, as one value of a column: an integer if all folders name one."""
    given = [footer.partitions[name] for footer in footers if name in footer.partitions]
    is_integer = all(one is None or INTEGER_TEXT.fullmatch(one) for one in given)
    takes_integers = kind.change(pa.array([], pa.int64())) is not None
    typed = int(value) if value is not None and is_integer and takes_integers else value
    return kind.read(pa.array([typed], None if value is not None else kind.empty))


def _integer_type(table: Table, footers: Sequence[Footer], column: str) -> pa.DataType:
    """Signed integers, unless an unsigned one of a file does not fit."""
    storage = Storage(table.root)
    for path, footer in zip(table.paths, table.footers, strict=True):
        name = table.column_in(footer, column) if footer.num_rows else None
        if name in footer.schema.names and footer.schema.field(name).type == pa.uint64():
            with opened(storage, path) as (file, _):
                if file is not None and (pc.max(file.read(columns=[name]).column(0)).as_py() or 0) >= 2**63:
                    return pa.uint64()
    return pa.int64()
