"""Where the tables of a data set are: in one folder, or each in a place of its own; and what is left out of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data import unused
from rails_ray.data.table_files.converting import Converter
from rails_ray.errors import NotFoundError
from rails_ray.storage import table_places
from rails_ray.storage.attributes import ATTRIBUTE
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.rows import Rows, find_rows
from rails_ray.storage.tables import Table
from rails_ray.storage.values import ID, Columns, Kind

NAMES = ("items", "queries", "relevance", "interactions", "users")
COLUMNS = (  # that can be read from a column of another name
    *("item_id", "query_id", "user_id", "text", "title", "split", "vector", "feature_indices", "feature_values"),
    *("position", "timestamp", "scores", "weight"),
)
TEXTS = ("text", "title", "split")
OF_USERS = ("interactions", "users")  # tables with a column user_id
MOST_DROPPED = 0.1  # rows of a table that may name what is not there, unless the caller says another share
COUNTS_ALONE = 100  # rows of a file that is judged by itself too: a few bad rows of a smaller one say little
SHOWN = 3  # names of files in a sentence
SESSION = "session_id"  # in place of user_id


@dataclass(frozen=True)
class Sources:
    """
    folder: local, or a URL such as s3://bucket/prefix; a table NAME is its file NAME.parquet, or its folder
        NAME.parquet or NAME. None if every table has a place of its own.
    places: files, folders or patterns of tables that are elsewhere, by the names of the tables.
    columns: columns that are read in place of others, by the name of that column (`item_id`), or of it in one table
        (`queries.text`).
    max_dropped: share of the rows of a table, and of each of its larger files, that may name items, queries or users
        that are not there.
    refuses_zeros: whether vectors that are compared by their directions must not be zero.
    cache: storage of tables that are Parquet made of other formats; None for a folder of this process.
    attributes: further columns of the items to store, by the names that they get.
    version_kinds: what these must hold, if items are added to a version, which they may then lack; None for any.
    notes: a sentence on all that reading left out, or read as something else; reading adds to it.
    """

    folder: str | None
    places: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    max_dropped: float = MOST_DROPPED
    notes: list[str] = field(default_factory=list, compare=False)
    cache: str | None = None
    refuses_zeros: bool = True
    attributes: Mapping[str, str] = field(default_factory=dict)
    version_kinds: Columns | None = None
    _tables: dict[str, Table] = field(default_factory=dict, compare=False, repr=False)
    _used: dict[str, set[str]] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return str(Storage(self.folder)) if self.folder is not None else next(iter(self.places.values()), "nothing")

    def table(self, name: str) -> Table:
        """The table of a name.

        Raises:
            NotFoundError: if there is none.
            ValueError: if there are two.
        """
        if name not in self._tables:
            table, renamed = self._find(name), self._renamed(name)
            if name in OF_USERS and "user_id" not in renamed:
                renamed |= self._sessions(name, table)
            self._tables[name] = replace(table, renamed=renamed) if renamed else table
        return self._tables[name]

    def _sessions(self, name: str, table: Table) -> dict[str, str]:
        """The column of sessions, if a table has it in place of users."""
        columns = dict.fromkeys(column for footer in table.readable[0] for column in footer.columns)
        found = {alike: column for column in columns if (alike := column.casefold()) in ("user_id", SESSION)}
        if SESSION not in found:
            return {}
        session = found[SESSION]
        if "user_id" in found:
            read = f"{found['user_id']} is read, not {session}"
            self.note(f"{name}: {read}: --data.columns user_id={session} reads sessions")
            return {}
        self.note(f"{name}: column {session!r} is read as user_id, so that a user is a session")
        return {"user_id": session}

    def _find(self, name: str) -> Table:
        if name in self.places:
            converted = self._converter.table(self.places[name], self._texts(name))
            return converted or table_places.find(self.places[name])
        if self.folder is None:
            raise NotFoundError(f"the table of {name} must be somewhere, got no folder and no place: name one")
        found = list[Table]()
        for file in (f"{name}.parquet", name):
            try:
                found.append(table_places.find(f"{Storage(self.folder)}/{file}"))
            except NotFoundError:
                continue
        if not found and name in self._data_set:
            return self._data_set[name]
        other = self._converter.table(f"{Storage(self.folder)}/{name}", self._texts(name))
        if other is not None and found:
            raise ValueError(
                f"{self} must have one table {name}, got {found[0].name} and {other.name}: name one of them with "
                f"--data.{name}"
            )
        found += [] if other is None else [other]
        if not found:
            raise NotFoundError(
                f"{Storage(self.folder)}/{name}.parquet must exist, got no such file, no {name} in CSV, TSV or JSON "
                f"lines, and no folder {name} of such files: add the table, or name the folder that has it"
            )
        if len(found) > 1:
            raise ValueError(
                f"{self} must have one table {name}, got {name}.parquet and a folder {name}: name one of them with "
                f"--data.{name}"
            )
        return found[0]

    @cached_property
    def _converter(self) -> Converter:
        return Converter(self.cache, self.notes)

    @cached_property
    def _data_set(self) -> dict[str, Table]:
        """The tables of a folder that another tool has written."""
        if self.folder is None:
            return {}
        return self._converter.data_set(str(Storage(self.folder)), self._texts("items"))

    def _texts(self, name: str) -> list[str]:
        """The columns of a table that are texts, whatever they hold."""
        renamed = self._renamed(name)
        return [renamed.get(column, column) for column in TEXTS]

    def _renamed(self, name: str) -> dict[str, str]:
        """The columns of a table that are read in place of others; those for one table come first."""
        everywhere = {column: given for column, given in self.columns.items() if "." not in column}
        prefix = f"{name}."
        here = {
            column.removeprefix(prefix): given for column, given in self.columns.items() if column.startswith(prefix)
        }
        return everywhere | here | (dict(self.attributes) if name == "items" else {})

    def has(self, name: str) -> bool:
        """Return whether there is such a table."""
        try:
            self.table(name)
        except NotFoundError:
            return False
        return True

    def open(self, name: str, columns: Iterable[str] = ()) -> Table:
        """The table of a name, with a note on the files that are no part of it.

        Args:
            columns: those that are going to be read; `note_unused` names the others.

        Raises:
            NotFoundError: if there is none.
            ValueError: if there are two, or a file is not Parquet.
        """
        table = self.table(name)
        self._used.setdefault(name, set()).update(columns)
        if table.left_out:
            self.note(
                f"{name}: {len(table.left_out):,} other file{'s' * (len(table.left_out) > 1)} left out "
                f"({shown(table.left_out)})"
            )
        empty = [footer.name for footer in table.footers if not footer.num_rows]
        if empty:
            self.note(f"{name}: {len(empty):,} of {len(table.paths):,} files hold no row ({shown(empty)})")
        return table

    def read(self, name: str, columns: Columns, optional: Columns | None = None, **how: Any) -> Rows:
        """All rows of a table, with a note on what was left out. Raises what `open` and `Table.read` do."""
        rows = self.open(name, {**columns, **(optional or {})}).read(columns, optional, **how)
        for note in null_notes(name, rows.num_null, len(rows)):
            self.note(note)
        return rows

    def weights(self, name: str, rows: Rows) -> NDArray[np.float64] | None:
        """Weights of the rows of a table, 1 where one is null; None if all are 1, as they are without such a column.

        Raises:
            ValueError: if one is negative or not finite.
        """
        if "weight" not in rows:
            return None
        column = rows["weight"]
        found: NDArray[np.float64] = column.fill_null(1.0).to_numpy()
        wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
        if len(wrong):
            file, row = rows.where(int(wrong[0]))
            raise ValueError(
                f"column {self.column_of(name, 'weight')!r} of {file} must hold finite weights of at least 0, or null "
                f"for 1, got {found[wrong[0]]} in row {row}"
            )
        if column.null_count:
            nulls = f"{column.null_count:,} of {len(rows):,} values of column {self.column_of(name, 'weight')!r}"
            self.note(f"{name}: {nulls} are null, read as 1")
        return None if (found == 1).all() else found

    def column_of(self, name: str, column: str) -> str:
        """The name that a column has in a table of files; its own if there is none."""
        table = self.table(name)
        names = (table.column_in(footer, column) for footer in table.footers)
        return next(filter(None, names), column)

    def check_columns(self) -> None:
        """Raises:
        ValueError: if a column that is to be read in place of another is in no table that was opened.
        """
        for name, column in self.columns.items():
            prefix, _, _ = name.rpartition(".")
            opened = [table for own, table in self._tables.items() if prefix in ("", own)]
            if opened and not any(column in footer.columns for table in opened for footer in table.footers):
                there = ", ".join(dict.fromkeys(own for table in opened for own in table.column_names))
                raise ValueError(f"--data.columns {name}={column} must name a column of the data, got {there}")

    def attribute_columns(self) -> dict[str, Kind]:
        """The attributes as columns of the table of items. A note names each that added items lack.

        Raises:
            NotFoundError: if there is no table of items.
            ValueError: if it lacks one, or one is of a type that it cannot have.
        """
        if not self.attributes:
            return {}
        table = self.table("items")
        kinds = dict.fromkeys(self.attributes, ATTRIBUTE) if self.version_kinds is None else self.version_kinds
        types = table.types({"item_id": ID}, kinds)
        for name, column in self.attributes.items():
            if name not in types and self.version_kinds is None:
                there = ", ".join(table.column_names)
                raise ValueError(f"attributes must name columns of {table.name}, got {column!r}: there are {there}")
            if name not in types:
                self.note(f"items: {table.name} has no column {column!r}, so the attribute {name} is null in each")
            elif pa.types.is_null(types[name]):
                raise ValueError(
                    f"column {column!r} of {table.name} must have a value in some row to be an attribute, got null in "
                    "all: leave it out of the attributes"
                )
        return {name: kind for name, kind in kinds.items() if name in types}

    def note_unused(self) -> None:
        """Take down the columns of each table that nothing has read, and how to store those of items."""
        for name, used in self._used.items():
            is_items = name == "items"
            attributes, offers = self.attributes if is_items else {}, is_items and self.version_kinds is None
            for sentence in unused.notes(name, self.table(name), used, attributes, offers):
                self.note(sentence)

    def note(self, sentence: str) -> None:
        """Take down what was left out, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def references(
        self, name: str, rows: Rows, known: Mapping[str, Rows]
    ) -> tuple[NDArray[np.bool_], list[NDArray[np.int64]]]:
        """Which rows of a table name what is there, and the rows that these name in each of the other tables.

        Args:
            known: the tables that have the ids of columns, by column.

        Raises:
            ValueError: if ids have another type, or more rows than `max_dropped` name what is not there.
        """
        found = {column: find_rows(rows, other, column) for column, other in known.items()}
        is_kept = np.ones(len(rows), dtype=bool)
        for column, places in found.items():
            num_lost = int((places < 0).sum())
            if num_lost:
                self._note_dropped(name, rows, column, places, known[column])
            is_kept &= places >= 0
        return is_kept, [places[is_kept] for places in found.values()]

    def _note_dropped(self, name: str, rows: Rows, column: str, places: NDArray[np.int64], known: Rows) -> None:
        lost = np.flatnonzero(places < 0)
        found, sizes = rows.per_file(lost), np.diff(rows.ends, prepend=0)
        of_files = np.where(sizes >= COUNTS_ALONE, found / np.maximum(sizes, 1), 0)
        of_table, worst = len(lost) / len(rows), int(of_files.argmax())
        first, count = int(lost[0]), f"{len(lost):,} of {len(rows):,} rows"
        if of_table <= self.max_dropped < of_files[worst]:
            first, count = int(lost[found[:worst].sum()]), f"{found[worst]:,} of {sizes[worst]:,} rows of this file"
        file, row = rows.where(first)
        value = rows[column][first].as_py()
        most = max(of_table, of_files[worst])
        if most > self.max_dropped:
            raise ValueError(
                f"column {column!r} of {file} must hold ids of {known.name}, got {value!r} in row {row} ({count} are "
                f"wrong): mend the ids, or leave such rows out with --data.max-dropped {ceiling(most)}"
            )
        by_file = f" ({_by_file(rows.files, found)})" if np.count_nonzero(found) > 1 else ""
        self.note(
            f"{name}: {count} left out{by_file}, as {column} is not in {known.name}: {value!r} in row {row} of {file}"
        )


def _by_file(files: Sequence[str], found: NDArray[np.int64]) -> str:
    """How many rows of some files, those with the most first."""
    most = [number for number in (-found).argsort(kind="stable") if found[number]]
    parts = [f"{found[number]:,} in {files[number].rpartition('/')[2]}" for number in most[:SHOWN]]
    return ", ".join(parts) + ", .." * (len(most) > SHOWN)


def null_notes(name: str, num_null: Mapping[str, int], num_rows: int, vectors: Collection[str] = ()) -> list[str]:
    """A sentence on the values of a table that are null; a title may be.

    Args:
        vectors: columns of vectors; the others have texts.
    """
    return [
        f"{name}: {number:,} of {num_rows:,} values of column {column!r} are null, read as "
        f"{'no vectors' if column in vectors else 'empty texts'}"
        for column, number in num_null.items()
        if number and (column != "title" or column in vectors)
    ]


def ceiling(share: float) -> float:
    """A share in hundredths, rounded up."""
    return float(np.ceil(share * 100 - 1e-9) / 100)


def shown(paths: Sequence[str]) -> str:
    """Some names of files."""
    names = ", ".join(path.rpartition("/")[2] for path in paths[:SHOWN])
    return names if len(paths) <= SHOWN else f"{names}, .."
