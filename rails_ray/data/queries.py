"""Queries of a split: what they ask, in arrays, and the items that answer them. Imports numpy alone.

Axes: Q queries, M items of all lists together, D width of a vector.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rails_ray.schema.times import UNKNOWN_TIME


class UnknownQueryError(ValueError):
    """A query names nothing that the model knows."""


SPLITS = ("train", "valid", "test")
SPLIT_NAMES = {split: split for split in SPLITS} | dict.fromkeys(("validation", "val", "dev"), "valid")  # in any case


@runtime_checkable
class Inputs(Protocol):
    """Inputs of queries, one after the other."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...

    def take(self, numbers: NDArray[np.integer] | slice) -> "Inputs":
        """Some of the queries, in the order of `numbers`."""

    def in_corpus(self, rows: NDArray[np.int64]) -> "Inputs":
        """Return the queries as asked of a corpus that has `rows[row]` in place of each item row, -1 for none."""

    def digest(self) -> str:
        """The sha256 of all queries."""


@dataclass(frozen=True)
class ItemLists:
    """A list of item rows per query: list i is rows[starts[i] : starts[i + 1]].

    weights: what each row counts in training, at least 0, in the order of `rows`; None if all count 1.
    """

    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
    weights: NDArray[np.float64] | None = field(default=None, kw_only=True)

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
        return ItemLists(starts, self.rows[places], weights=self._weights_at(places))

    def _weights_at(self, places: NDArray[Any]) -> NDArray[np.float64] | None:
        return None if self.weights is None else self.weights[places]

    def renamed(self, rows: NDArray[np.int64]) -> "ItemLists":
        """Replace each row by `rows[row]`."""
        return replace(self, rows=rows[self.rows])

    def without(self, row: int) -> "ItemLists":
        """Leave out one row."""
        is_kept = self.rows != row
        starts = np.concatenate([[0], np.cumsum(is_kept)])[self.starts]
        return ItemLists(starts, self.rows[is_kept], weights=self._weights_at(is_kept))

    def in_corpus(self, rows: NDArray[np.int64]) -> "ItemLists":
        """Items that the other corpus lacks are left out."""
        return self.renamed(rows).without(-1)

    def digest(self) -> str:
        return digest_of(*self._arrays())

    def _arrays(self) -> list[NDArray[Any]]:
        return [self.starts, self.rows, *([] if self.weights is None else [self.weights])]


@dataclass(frozen=True)
class Visits(ItemLists):
    """Histories: what somebody interacted with, in time order, when, and who it was.

    times: seconds since 1970, in the order of `rows`; `UNKNOWN_TIME` where it is not known. None if it never is.
    users: number of the user of each query, -1 if it is not known; None if no user is known.
    """

    times: NDArray[np.int64] | None = None
    users: NDArray[np.int64] | None = None

    @staticmethod
    def of(lists: Sequence[Sequence[int] | NDArray[np.int64]]) -> "Visits":
        """Histories of anyone at any time."""
        found = ItemLists.of(lists)
        return Visits(found.starts, found.rows)

    @staticmethod
    def one(rows: Sequence[int], times: Sequence[int] | None = None, user: int = -1) -> "Visits":
        """A single history."""
        known = np.array([UNKNOWN_TIME] * len(rows) if times is None else times, np.int64)
        return Visits(np.array([0, len(rows)]), np.array(rows, np.int64), known, np.array([user], np.int64))

    @staticmethod
    def joined(parts: Sequence["Visits"]) -> "Visits":
        """Histories with times and users, one after the other."""
        lengths = np.concatenate([part.lengths for part in parts])
        columns = [(part.rows, part.times, part.users) for part in parts]
        return Visits(np.concatenate([[0], lengths.cumsum()]), *map(np.concatenate, zip(*columns, strict=True)))

    def take(self, numbers: NDArray[np.integer] | slice) -> "Visits":
        starts, places = _taken(self.starts, numbers)
        times = None if self.times is None else self.times[places]
        users = None if self.users is None else self.users[numbers]
        return Visits(starts, self.rows[places], times, users, weights=self._weights_at(places))

    def between(self, lists: NDArray[np.int64], first: NDArray[np.int64], end: NDArray[np.int64]) -> "Visits":
        """Parts of some of the lists, from the place `first` of `rows` to `end`."""
        lengths = end - first
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(first - starts[:-1], lengths) + np.arange(starts[-1])
        times = None if self.times is None else self.times[places]
        users = None if self.users is None else self.users[lists]
        return Visits(starts, self.rows[places], times, users, weights=self._weights_at(places))

    def renamed(self, rows: NDArray[np.int64]) -> "Visits":
        return replace(self, rows=rows[self.rows])

    def without(self, row: int) -> "Visits":
        is_kept = self.rows != row
        starts = np.concatenate([[0], np.cumsum(is_kept)])[self.starts]
        times = None if self.times is None else self.times[is_kept]
        return Visits(starts, self.rows[is_kept], times, self.users, weights=self._weights_at(is_kept))

    def digest(self) -> str:
        """Return a digest of items and times: equal histories are the same query."""
        return super().digest() if self.times is None else digest_of(*self._arrays(), self.times)


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
        return digest_of(self.starts, self.indices, self.values)


@dataclass(frozen=True)
class DenseRows:
    """Queries or items that are vectors [Q, D], or several vectors each [Q, P, D].

    widths: numbers of each of several vectors, one after the other in a row [Q, D]; empty if a row is no such thing.
    """

    values: NDArray[np.float32]
    widths: tuple[int, ...] = ()

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
        return replace(self, values=self.values[numbers])

    def in_corpus(self, rows: NDArray[np.int64]) -> "DenseRows":
        return self

    def digest(self) -> str:
        return digest_of(self.values)


@dataclass(frozen=True)
class Queries:
    """Queries of one split.

    inputs: what the query encoder reads: texts, histories as item rows in time order, features, or vectors.
    relevant: the items that answer each query. A row beyond the corpus is an item that it lacks and no search finds.
    seen: items that a query holds itself, its history; None if there are none.
    exclude_seen: whether an answer must not hold them. None: nobody chose, so it must not.
    """

    inputs: Inputs
    relevant: ItemLists
    seen: ItemLists | None = None
    exclude_seen: bool | None = None

    def __len__(self) -> int:
        return len(self.relevant)

    @property
    def excluded(self) -> ItemLists | None:
        """Items that no answer may hold, by query; None if it may hold all."""
        return None if self.exclude_seen is False else self.seen

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """Return what each pair of a query and an item that answers it counts in training, and in histories each item,
        as an answer to those before it; None if all count 1."""
        of_inputs = getattr(self.inputs, "weights", None)  # of `Visits`, whose items answer what comes before them
        if self.relevant.weights is None or of_inputs is None:
            return self.relevant.weights
        return np.concatenate([self.relevant.weights, of_inputs])

    @property
    def num_seen_relevant(self) -> int:
        """Relevant items that lie in the history of their own query."""
        if self.seen is None:
            return 0
        width = 1 + max(self.relevant.rows.max(initial=0), self.seen.rows.max(initial=0))
        relevant, seen = (
            np.repeat(np.arange(len(own)) * width, own.lengths) + own.rows for own in (self.relevant, self.seen)
        )
        return int(np.isin(relevant, seen).sum())

    def take(self, numbers: NDArray[np.integer] | slice) -> "Queries":
        """Some of the queries, in the order of `numbers`."""
        inputs, relevant = self.inputs.take(numbers), self.relevant.take(numbers)
        return replace(self, inputs=inputs, relevant=relevant, seen=self.seen and self.seen.take(numbers))

    def head(self, num_queries: int) -> "Queries":
        """The first queries."""
        return self.take(slice(num_queries))

    def in_corpus(self, rows: NDArray[np.int64], num_items: int) -> "Queries":
        """Return the queries as asked of another corpus: an earlier version of this one, say.

        Relevant items that it lacks become row `num_items`, which no search finds; histories leave them out.

        Args:
            rows: row of each item in the other corpus, or -1 where it lacks the item.
            num_items: size of the other corpus.
        """
        relevant = self.relevant.renamed(np.where(rows < 0, num_items, rows))
        seen = self.seen and self.seen.in_corpus(rows)
        return replace(self, inputs=self.inputs.in_corpus(rows), relevant=relevant, seen=seen)

    def among(self, left: NDArray[np.int64], num_items: int) -> "Queries":
        """Return the queries of a smaller corpus, without those that have no relevant item there. Inputs of the query
        encoder stay as they are: a history may hold any item.

        Args:
            left: rows of the items of the smaller corpus.
            num_items: size of the corpus.
        """
        rows = np.full(num_items + 1, -1)
        rows[left], rows[num_items] = np.arange(len(left)), len(left)
        relevant = self.relevant.in_corpus(rows)
        found = replace(self, relevant=relevant, seen=self.seen and self.seen.in_corpus(rows))
        return found.take(np.flatnonzero(relevant.lengths))


def check_unweighted(queries: Queries, what: str) -> None:
    """
    Args:
        what: names what is trained.

    Raises:
        ValueError: if pairs have weights, which this training would not read.
    """
    if queries.weights is not None:
        raise ValueError(
            f"pairs of a query and an item must count alike to train {what}, which cannot weigh them, got a column "
            "'weight': leave it out of the table, or train a dual encoder"
        )


def digest_of(*arrays: NDArray[Any]) -> str:
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
