"""Data set as a run reads it: a corpus, and the queries of each split with the items that answer them.

Inputs of queries are texts, histories (lists of item rows), features or vectors. Each of them can take some of its
queries, translate itself to another corpus and give its digest, so that nobody has to ask which of these it is.

Axes: Q queries, M items of all lists together, D width of a vector.
"""

import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsIndex, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.data.queries import SPLITS, DenseRows, Queries, digest_of
from rails_ray.storage.ids import BLOCK, ColumnDigest, ItemIds


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
class DataSet:
    """A corpus and the queries of each split.

    item_inputs: what the item encoder reads, by item row: texts, vectors, or the rows themselves.
    titles: titles for people to read, by item row; None if the data set has none.
    notes: a sentence on all that reading left out, or read as something else.
    """

    item_ids: ItemIds
    item_inputs: Texts | DenseRows | NDArray[np.int64]
    queries: dict[str, Queries]
    titles: Texts | None = field(default=None, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def choosing(self, exclude_seen: bool | None) -> "DataSet":
        """Choose whether answers may hold what a query has seen."""
        return replace(
            self, queries={split: replace(own, exclude_seen=exclude_seen) for split, own in self.queries.items()}
        )

    def digest(self) -> str:
        """The sha256 of everything that training reads."""
        inputs = self.item_inputs
        digests = [self.item_ids.digest(), digest_of(inputs) if isinstance(inputs, np.ndarray) else inputs.digest()]
        for split in SPLITS:
            queries = self.queries[split]
            digests += ["" if own is None else own.digest() for own in (queries.inputs, queries.relevant, queries.seen)]
        return hashlib.sha256("|".join(digests).encode()).hexdigest()
