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
from rails_ray.data.sources import null_notes
from rails_ray.data.vectors import check_directions, zero_rows
from rails_ray.storage.attributes import kinds_of
from rails_ray.storage.ids import ColumnDigest, keys_of
from rails_ray.storage.parquet_files import FileRows, RowBatch
from rails_ray.storage.rows import Rows, repeated_id
from rails_ray.storage.tables import Table
from rails_ray.storage.values import FILLED_VECTOR, Columns


@dataclass(frozen=True)
class CorpusScan:
    """Content of a file of items.

    digests: digest of each column, by name.
    keys: a number for each item: its integer id, or a hash of its string.
    num_null: nulls that are read as empty texts, or as no vectors, by column.
    num_zero: items with a vector of zeros.
    first_zero: id of the first of them; None if there is none.
    """

    rows: FileRows
    digests: dict[str, str]
    keys: NDArray[np.integer]
    num_null: Mapping[str, int]
    num_zero: int = 0
    first_zero: Any = None


@runtime_checkable
class ItemSource(Protocol):
    """Items with the columns item_id, input (what the item encoder reads; absent if it reads nothing), title if the
    data set has them, and attributes."""

    @property
    def num_files(self) -> int: ...

    @property
    def attribute_kinds(self) -> dict[str, str]:
        """The kind of each attribute (`storage.attributes`)."""

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
    refuses_zeros: whether an item must not have a vector of zeros.
    attributes: columns that are stored as they are.
    """

    table: Table
    columns: Columns
    optional: Columns
    changed: Callable[[RowBatch], pa.Table]
    refuses_zeros: bool = False
    attributes: Columns = field(default_factory=dict)

    @property
    def num_files(self) -> int:
        return len(self.table.paths)

    @property
    def attribute_kinds(self) -> dict[str, str]:
        """The contract of `ItemSource`."""
        return kinds_of(self.table.types({}, self.attributes)) if self.attributes else {}

    def _block(self, batch: RowBatch) -> pa.Table:
        items = self.changed(batch)
        for name in self.attributes:
            items = items.append_column(name, batch[name])
        return items

    def scan(self, number: int) -> CorpusScan:
        """The contract of `ItemSource`."""
        rows, num_null = self.table.rows(number), dict[str, int]()

        def made() -> Iterator[pa.Table]:
            for batch in self.table.batches(self.columns, {**self.optional, **self.attributes}, [number]):
                for name, count in batch.num_null.items():
                    num_null[name] = num_null.get(name, 0) + count
                yield self._block(batch)

        return _scanned(rows, made(), num_null)

    def blocks(self, files: Sequence[FileRows], first_row: int, num_rows: int) -> Iterator[pa.Table]:
        """The contract of `ItemSource`."""
        optional = {**self.optional, **self.attributes}
        return map(self._block, self.table.part(files, first_row, num_rows, self.columns, optional))

    def id_at(self, files: Sequence[FileRows], row: int) -> tuple[Any, str, int]:
        """The contract of `ItemSource`."""
        [batch] = self.table.part(files, row, 1, {"item_id": self.columns["item_id"]})
        return batch["item_id"][0].as_py(), batch.file, batch.first_row

    def read(self) -> Rows:
        """All items at once without their attributes, mapped into memory."""
        return self.table.read(self.columns, self.optional, self.changed)


@dataclass(frozen=True)
class ListedItems:
    """
    items: distinct ids, inputs, titles and attributes.
    attributes: names of the columns that are attributes.
    """

    items: pa.Table
    attributes: tuple[str, ...] = ()

    num_files = 1

    @property
    def attribute_kinds(self) -> dict[str, str]:
        """The contract of `ItemSource`."""
        return kinds_of({name: self.items.schema.field(name).type for name in self.attributes})

    def scan(self, number: int) -> CorpusScan:
        """The contract of `ItemSource`."""
        return _scanned(FileRows("", "", (self.items.num_rows,)), [self.items], {})

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
    notes: a sentence on all that is left out, or read as something else, as far as that is known before a scan.
    """

    items: ItemFiles | ListedItems
    query: dict[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    has_texts: bool = False
    notes: tuple[str, ...] = ()

    def null_notes(self, num_null: Mapping[str, int], num_rows: int) -> list[str]:
        """A sentence on the values of each column that are null, as far as something is read in their place."""
        columns: Columns = getattr(self.items, "columns", {})
        vectors = [name for name, kind in columns.items() if kind == FILLED_VECTOR]
        return null_notes("items", num_null, num_rows, vectors)


def _scanned(rows: FileRows, tables: Iterable[pa.Table], num_null: Mapping[str, int]) -> CorpusScan:
    digests, keys, zeros = dict[str, ColumnDigest](), list[NDArray[np.integer]](), list[Any]()
    for table in tables:
        for name in table.column_names:
            digests.setdefault(name, ColumnDigest()).add(table[name])
        keys.append(keys_of(table["item_id"]))
        if "input" in table.column_names and pa.types.is_fixed_size_list(table["input"].type):
            zeros += table["item_id"].take(pa.array(zero_rows(vectors_in(table["input"])))).to_pylist()
    found = np.concatenate(keys) if keys else np.empty(0, np.int64)
    named = {name: digest.hexdigest() for name, digest in digests.items()}
    return CorpusScan(rows, named, found, num_null, len(zeros), next(iter(zeros), None))


def keys_of_all(scans: Sequence[CorpusScan]) -> NDArray[np.integer]:
    """A number for each item of all files."""
    return np.concatenate([scan.keys for scan in scans if len(scan.keys)])  # those of no items have another type


def num_null_of(scans: Sequence[CorpusScan]) -> dict[str, int]:
    """The nulls of all files, by column, as far as something is read in their place."""
    names = {name for scan in scans for name in scan.num_null}
    return {name: sum(scan.num_null.get(name, 0) for scan in scans) for name in sorted(names)}


def digest_of(scans: Sequence[CorpusScan]) -> str:
    """The sha256 of all items, and of how files cut them."""
    described = "|".join(f"{scan.rows.num_rows} {sorted(scan.digests.items())}" for scan in scans)
    return hashlib.sha256(described.encode()).hexdigest()


def check_distinct(source: ItemSource, scans: Sequence[CorpusScan]) -> None:
    """Raises:
    ValueError: if an id occurs in two rows, of one file or of two.
    """
    keys = keys_of_all(scans)
    files = [scan.rows for scan in scans]
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    for place in again:  # a hash may be that of another string
        first, _, _ = source.id_at(files, int(order[place]))
        second, file, row = source.id_at(files, int(order[place + 1]))
        if first == second:
            raise repeated_id("item_id", second, file, row)


def check_zeros(source: ItemSource, scans: Sequence[CorpusScan]) -> int:
    """The items with a vector of zeros.

    Raises:
        ValueError: if there is one, and the source refuses that.
    """
    num_zero, num_rows = sum(scan.num_zero for scan in scans), sum(scan.rows.num_rows for scan in scans)
    if getattr(source, "refuses_zeros", False):
        first = next((scan.first_zero for scan in scans if scan.num_zero), None)
        check_directions("items", num_zero, num_rows, first)
    return num_zero


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
