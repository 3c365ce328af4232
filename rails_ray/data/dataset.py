"""What a run reads of any data set: a corpus, and the queries of each split with the items that answer them.

Inputs of queries are texts, histories (lists of item rows), features or vectors. Each of them can take some of its
queries, translate itself to another corpus and give its digest, so that nobody has to ask which of these it is.

Axes: Q queries, M items of all lists together, D width of a vector.
"""

import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsIndex, overload, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.storage.ids import BLOCK, ColumnDigest, ItemIds

SPLITS = ("train", "valid", "test")


@runtime_checkable
class Inputs(Protocol):
    """What queries ask, one after the other."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...

    def take(self, numbers: NDArray[np.integer] | slice) -> "Inputs":
        """Some of the queries, in the order of `numbers`."""

    def in_corpus(self, rows: NDArray[np.int64]) -> "Inputs":
        """The same, asked of a corpus that has `rows[row]` in place of each item row, or -1 where it lacks the item."""

    def digest(self) -> str:
        """The sha256 of all queries."""


class Texts(Sequence[str]):
    """Texts, of queries or of items, in Arrow's memory: no object for each.

    Args:
        values: Arrow's strings or any others.
    """

    def __init__(self, values: "pa.ChunkedArray | Iterable[str]" = ()) -> None:
        is_column = isinstance(values, pa.ChunkedArray)
        self.column: Any = values if is_column else pa.chunked_array([pa.array(list(values), pa.large_string())])

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, number: SupportsIndex) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> "Texts": ...

    def __getitem__(self, number: SupportsIndex | slice) -> "str | Texts":
        if isinstance(number, slice):
            first, end, step = number.indices(len(self))
            if step == 1:
                return Texts(self.column.slice(first, max(end - first, 0)))
            return self.take(np.arange(first, end, step))
        text: str = self.column[operator.index(number)].as_py()
        return text

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), BLOCK):
            yield from self.column.slice(first, BLOCK).to_pylist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    def take(self, numbers: NDArray[np.integer] | slice) -> "Texts":
        return self[numbers] if isinstance(numbers, slice) else Texts(self.column.take(pa.array(numbers)))

    def and_then(self, others: "Texts") -> "Texts":
        """These texts, then the others."""
        chunks = [*self.column.chunks, *others.column.chunks]
        return Texts(pa.chunked_array([chunk.cast(pa.large_string()) for chunk in chunks], pa.large_string()))

    def in_corpus(self, rows: NDArray[np.int64]) -> "Texts":
        return self

    def digest(self) -> str:
        digest = ColumnDigest()
        digest.add(self.column)
        return digest.hexdigest()


@dataclass(frozen=True)
class ItemLists:
    """A list of item rows per query: list i is rows[starts[i] : starts[i + 1]]."""

    starts: NDArray[np.int64]
    rows: NDArray[np.int64]

    @staticmethod
    def of(lists: Sequence[Sequence[int] | NDArray[np.int64]]) -> "ItemLists":
        starts = np.concatenate([[0], np.cumsum([len(line) for line in lists], dtype=np.int64)])
        return ItemLists(
            starts, np.concatenate([np.asarray(line, np.int64) for line in lists] or [np.empty(0, np.int64)])
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> NDArray[np.int64]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.rows[self.starts[number] : self.starts[number + 1]]

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (self[number] for number in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def take(self, numbers: NDArray[np.integer] | slice) -> "ItemLists":
        """Some of the lists, in the order of `numbers`."""
        starts, places = _taken(self.starts, numbers)
        return ItemLists(starts, self.rows[places])

    def renamed(self, rows: NDArray[np.int64]) -> "ItemLists":
        """The same lists with `rows[row]` in place of each row."""
        return ItemLists(self.starts, rows[self.rows])

    def without(self, row: int) -> "ItemLists":
        """The same lists less one row."""
        is_kept = self.rows != row
        return ItemLists(np.concatenate([[0], np.cumsum(is_kept)])[self.starts], self.rows[is_kept])

    def in_corpus(self, rows: NDArray[np.int64]) -> "ItemLists":
        """Items that the other corpus lacks are left out."""
        return self.renamed(rows).without(-1)

    def digest(self) -> str:
        return _digest(self.starts, self.rows)


@dataclass(frozen=True)
class SparseRows:
    """Numbered features of queries: query i has the ones at starts[i] : starts[i + 1], each once.

    width: how many features there can be; all indices are below it.
    """

    starts: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: NDArray[np.float32]
    width: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Indices and values of a query."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        own = slice(self.starts[number], self.starts[number + 1])
        return self.indices[own], self.values[own]

    def take(self, numbers: NDArray[np.integer] | slice) -> "SparseRows":
        """Some of the queries, in the order of `numbers`."""
        starts, places = _taken(self.starts, numbers)
        return SparseRows(starts, self.indices[places], self.values[places], self.width)

    def in_corpus(self, rows: NDArray[np.int64]) -> "SparseRows":
        return self

    def digest(self) -> str:
        return _digest(self.starts, self.indices, self.values)


@dataclass(frozen=True)
class DenseRows:
    """Queries or items that are vectors [Q, D], or several vectors each [Q, P, D]."""

    values: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self.values[number]
        return vector

    @property
    def width(self) -> int:
        """D."""
        width: int = self.values.shape[-1]
        return width

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float32]:
        return np.array(self.values, dtype=dtype, copy=copy)

    def take(self, numbers: NDArray[np.integer] | slice) -> "DenseRows":
        """Some of the queries, in the order of `numbers`."""
        return DenseRows(self.values[numbers])

    def in_corpus(self, rows: NDArray[np.int64]) -> "DenseRows":
        return self

    def digest(self) -> str:
        return _digest(self.values)


@dataclass(frozen=True)
class Queries:
    """Queries of one split.

    inputs: what the query encoder reads: texts, histories as item rows in time order, features, or vectors.
    relevant: the items that answer each query. A row beyond the corpus is an item that it lacks and no search finds.
    seen: items that a query's answer must not hold; None if there are none.
    """

    inputs: Inputs
    relevant: ItemLists
    seen: ItemLists | None = None

    def __len__(self) -> int:
        return len(self.relevant)

    def head(self, num_queries: int) -> "Queries":
        """The first queries."""
        first = slice(num_queries)
        return Queries(self.inputs.take(first), self.relevant.take(first), self.seen and self.seen.take(first))

    def in_corpus(self, rows: NDArray[np.int64], num_items: int) -> "Queries":
        """The same queries, asked of another corpus: an earlier version of this one, say.

        Relevant items that it lacks become row `num_items`, which no search finds; histories leave them out.

        Args:
            rows: row of each item in the other corpus, or -1 where it lacks the item.
            num_items: size of the other corpus.
        """
        relevant = self.relevant.renamed(np.where(rows < 0, num_items, rows))
        return Queries(self.inputs.in_corpus(rows), relevant, self.seen and self.seen.in_corpus(rows))


@dataclass(frozen=True)
class DataSet:
    """A corpus and the queries of each split.

    item_inputs: what the item encoder reads, by item row: texts, vectors, or the rows themselves.
    titles: titles for people to read, by item row; None if the data set has none.
    """

    item_ids: ItemIds
    item_inputs: Texts | DenseRows | NDArray[np.int64]
    queries: dict[str, Queries]
    titles: Texts | None = field(default=None, kw_only=True)

    def digest(self) -> str:
        """The sha256 of everything that training reads."""
        inputs = self.item_inputs
        digests = [self.item_ids.digest(), _digest(inputs) if isinstance(inputs, np.ndarray) else inputs.digest()]
        for split in SPLITS:
            queries = self.queries[split]
            digests += ["" if own is None else own.digest() for own in (queries.inputs, queries.relevant, queries.seen)]
        return hashlib.sha256("|".join(digests).encode()).hexdigest()


def _digest(*arrays: NDArray[Any]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _taken(
    starts: NDArray[np.int64], numbers: NDArray[np.integer] | slice
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The starts of some lists, put one after the other, and where their entries are now."""
    lengths = np.diff(starts)[numbers]
    taken = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(taken[-1]) - np.repeat(taken[:-1], lengths)
    return taken, np.repeat(starts[:-1][numbers], lengths) + within
