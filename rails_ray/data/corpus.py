"""The items to encode, read batch by batch, and what answers need beside them.

| member        | the items are                                                   |
|---------------|-----------------------------------------------------------------|
| `ItemFiles`   | rows of a user's table, read when they are needed               |
| `ListedItems` | rows that are in memory already, as they follow from more tables |

Before a corpus is encoded it is scanned once, a file at a time: every row is checked, and each column's digest says
later whether these are still the same items.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data.dataset import Texts
from rails_ray.data.queries import DenseRows
from rails_ray.storage.ids import ColumnDigest, keys_of
from rails_ray.storage.rows import Rows, repeated_id, with_types
from rails_ray.storage.tables import Columns, FileRows, RowBatch, Table


@dataclass(frozen=True)
class CorpusScan:
    """Content of a file of items.

    digests: digest of each column, by name.
    keys: a number for each item: its integer id, or a hash of its string.
    """

    rows: FileRows
    digests: dict[str, str]
    keys: NDArray[np.integer]


@runtime_checkable
class ItemSource(Protocol):
    """Items with the columns item_id, input (what the item encoder reads; absent if it reads nothing) and, if the data
    set has them, title."""

    @property
    def num_files(self) -> int: ...

    def scan(self, number: int) -> CorpusScan:
        """Read what a file holds, every row checked.

        Raises:
            NotFoundError: if the file is gone.
            ValueError: if a row is not as the contract of its table says.
        """

    def blocks(self, files: Sequence[FileRows], first_row: int, num_rows: int) -> Iterator[pa.Table]:
        """Some consecutive items.

        Args:
            files: as the scans of all files gave them.

        Raises:
            StorageError: if a file has changed since then.
        """

    def id_at(self, files: Sequence[FileRows], row: int) -> tuple[Any, str, int]:
        """The id of an item, its file, and its row there."""


@dataclass(frozen=True)
class ItemFiles:
    """
    changed: makes item_id, input and title from a batch of the table; a function of a module, as it travels.
    """

    table: Table
    columns: Columns
    optional: Columns
    changed: Callable[[RowBatch], pa.Table]

    @property
    def num_files(self) -> int:
        return len(self.table.paths)

    def scan(self, number: int) -> CorpusScan:
        """The contract of `ItemSource`."""
        rows = self.table.rows(number)
        batches = self.table.batches(self.columns, self.optional, [number])
        return _scanned(rows, self._made(batches))

    def blocks(self, files: Sequence[FileRows], first_row: int, num_rows: int) -> Iterator[pa.Table]:
        """The contract of `ItemSource`."""
        there = self.table.column_names()
        columns = [name for name in (*self.columns, *self.optional) if name in there]
        return self._made(self.table.part(files, first_row, num_rows, columns))

    def _made(self, batches: Iterable[RowBatch]) -> Iterator[pa.Table]:
        """Make items of batches, with the types that the first file gives: those of others may be wider."""
        like: pa.Schema | None = None
        for batch in batches:
            if like is None:
                none = self.table.schema().empty_table().select(batch.table.column_names)
                like = self.changed(RowBatch(none, batch.file)).schema
            yield with_types(self.changed(batch), like)

    def id_at(self, files: Sequence[FileRows], row: int) -> tuple[Any, str, int]:
        """The contract of `ItemSource`."""
        [batch] = self.table.part(files, row, 1, ["item_id"])
        return batch["item_id"][0].as_py(), batch.file, batch.first_row

    def read(self) -> Rows:
        """All items at once, mapped into memory."""
        return self.table.read(self.columns, self.optional, self.changed)


@dataclass(frozen=True)
class ListedItems:
    """
    items: distinct ids, inputs and titles.
    """

    items: pa.Table

    num_files = 1

    def scan(self, number: int) -> CorpusScan:
        """The contract of `ItemSource`."""
        return _scanned(FileRows("", "", (self.items.num_rows,)), iter([self.items]))

    def blocks(self, files: Sequence[FileRows], first_row: int, num_rows: int) -> Iterator[pa.Table]:
        """The contract of `ItemSource`."""
        yield self.items.slice(first_row, num_rows)

    def id_at(self, files: Sequence[FileRows], row: int) -> tuple[Any, str, int]:
        """The contract of `ItemSource`."""
        return self.items["item_id"][row].as_py(), "the items", row

    def read(self) -> Rows:
        """All items at once."""
        return Rows(self.items, ("the items",), (self.items.num_rows,))


@dataclass(frozen=True)
class Corpus:
    """
    query: the fields that may give a query, each with the type of its ids, its text or its numbers.
    files: what reading a query needs beside the model, by name.
    has_texts: whether the items' inputs are texts.
    """

    items: ItemFiles | ListedItems
    query: dict[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    has_texts: bool = False


def _scanned(rows: FileRows, tables: Iterator[pa.Table]) -> CorpusScan:
    digests, keys = dict[str, ColumnDigest](), list[NDArray[np.integer]]()
    for table in tables:
        for name in table.column_names:
            digests.setdefault(name, ColumnDigest()).add(table[name])
        keys.append(keys_of(table["item_id"]))
    return CorpusScan(rows, {name: digest.hexdigest() for name, digest in digests.items()}, np.concatenate(keys))


def digest_of(scans: Sequence[CorpusScan]) -> str:
    """The sha256 of all items, and of how files cut them."""
    described = "|".join(f"{scan.rows.num_rows} {sorted(scan.digests.items())}" for scan in scans)
    return hashlib.sha256(described.encode()).hexdigest()


def check_distinct(source: ItemSource, scans: Sequence[CorpusScan]) -> None:
    """Raises:
    ValueError: if an id occurs in two rows, of one file or of two.
    """
    keys, files = np.concatenate([scan.keys for scan in scans]), [scan.rows for scan in scans]
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    for place in again:  # a hash may be that of another string
        first, _, _ = source.id_at(files, int(order[place]))
        second, file, row = source.id_at(files, int(order[place + 1]))
        if first == second:
            raise repeated_id("item_id", second, file, row)


def item_inputs(items: pa.Table) -> Texts | DenseRows | NDArray[Any]:
    """Return what the item encoder reads of some items of a corpus: their texts, their vectors or their rows."""
    column = items["input"]
    if pa.types.is_integer(column.type):
        rows: NDArray[Any] = column.to_numpy()
        return rows
    if pa.types.is_fixed_size_list(column.type):
        return DenseRows(vectors_in(column))
    return Texts(column)


def vectors_in(column: pa.ChunkedArray) -> NDArray[np.float32]:
    """A column of vectors [Q, D], or of several vectors each [Q, P, D]."""
    shape, kind, values = [len(column)], column.type, column.combine_chunks()
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind, values = kind.value_type, values.flatten()
    numbers: NDArray[np.float32] = values.to_numpy().reshape(shape)
    return numbers
