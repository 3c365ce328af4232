"""Which items the answer to each query of a batch may not hold.

A `Mask` is all that a search knows about this: a scan hides items block by block, a method that widens its lists asks
how many items are left, and a compiled loop reads the hidden rows. Every mask must make the same answers as brute force
over the items that it leaves.

| member       | what it hides                                  |
|--------------|------------------------------------------------|
| `Exclusions` | pairs of query and item row, as requests have them |
| `Remaining`  | all but some items, from every query: what a filter and tombstones leave; and pairs |

Axes: B queries, X items, E excluded pairs.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.kernels.postings import HiddenRows
from rails_ray.kernels.uploads import upload

FEW = 16  # where fewer than one item in so many is hidden, its column alone is written


@runtime_checkable
class Mask(Protocol):
    """Hides items from the queries of a batch.

    is_left: items that are not hidden from all queries, on the CPU; None for all.
    excluded: pairs of a query and an item that are hidden too.
    """

    @property
    def is_left(self) -> Bool[Tensor, " X"] | None: ...

    @property
    def excluded(self) -> "Exclusions": ...

    def hide(self, scores: Float[Tensor, "B X"], first_row: int = 0) -> Float[Tensor, "B X"]:
        """`scores` of the items first_row .. first_row + X - 1 with -inf at the hidden ones (changed in place)."""

    def num_left(self, num_queries: int, num_items: int) -> Int[Tensor, " B"]:
        """How many of the items 0 .. num_items - 1 are not hidden from each query."""

    def hidden_rows(self, num_queries: int, num_items: int) -> HiddenRows:
        """Which of the items 0 .. num_items - 1 are hidden from each query."""

    def of_queries(self, lines: Int[Tensor, " b"]) -> "Mask":
        """The mask of some queries, their numbers ascending, as a batch of their own."""

    def repeat_each(self, times: int) -> "Mask":
        """The mask of a batch that has each query `times` times in a row."""

    def of_items(self, first_row: int, num_items: int) -> "Mask":
        """The mask of some consecutive items, as a corpus of their own."""


@dataclass(frozen=True)
class Exclusions:
    """Pairs (query of the batch, item row) that no answer may hold, each pair once."""

    pairs: Int[Tensor, "E 2"]
    is_left = None

    @property
    def excluded(self) -> "Exclusions":
        """The contract of `Mask`."""
        return self

    @classmethod
    def of(cls, item_rows: Sequence[Sequence[int]], of_all: Collection[int] = ()) -> "Exclusions":
        """From one sequence of item rows per query of the batch, a row of which may be repeated, and distinct rows that
        are hidden from all of them."""
        known = frozenset(of_all)
        pairs = [
            (query, row) for query, rows in enumerate(item_rows) for row in dict.fromkeys(rows) if row not in known
        ]
        of_each = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
        if not known:
            return cls(of_each)
        every = torch.cartesian_prod(torch.arange(len(item_rows)), torch.tensor(list(of_all), dtype=torch.int64))
        return cls(torch.cat([of_each, every]))

    def hide(self, scores: Float[Tensor, "B X"], first_row: int = 0) -> Float[Tensor, "B X"]:
        """The contract of `Mask`."""
        if not len(self.pairs):
            return scores
        query, row = self.pairs.unbind(1)
        column = row - first_row
        here = (column >= 0) & (column < scores.shape[1])
        places = upload(torch.stack([query[here], column[here]]), scores.device)
        scores[places[0], places[1]] = -torch.inf
        return scores

    def num_left(self, num_queries: int, num_items: int) -> Int[Tensor, " B"]:
        """The contract of `Mask`."""
        query, row = self.pairs.unbind(1)
        return num_items - query[(row >= 0) & (row < num_items)].bincount(minlength=num_queries)

    def hidden_rows(self, num_queries: int, num_items: int) -> HiddenRows:
        """The contract of `Mask`."""
        pairs = self.pairs.numpy(force=True)
        pairs = pairs[(pairs[:, 1] >= 0) & (pairs[:, 1] < num_items)]
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
        edges = np.searchsorted(pairs[:, 0], np.arange(num_queries + 1))
        return HiddenRows(edges[:-1], edges[1:], np.ascontiguousarray(pairs[:, 1]))

    def of_queries(self, lines: Int[Tensor, " b"]) -> "Exclusions":
        """The contract of `Mask`."""
        lines = lines.to(self.pairs.device)
        query, row = self.pairs.unbind(1)
        is_own = torch.isin(query, lines)
        return Exclusions(torch.stack([torch.searchsorted(lines, query[is_own]), row[is_own]], dim=1))

    def repeat_each(self, times: int) -> "Exclusions":
        """The contract of `Mask`."""
        query, row = self.pairs.repeat_interleave(times, dim=0).unbind(1)
        again = torch.arange(times, device=self.pairs.device).repeat(len(self.pairs))
        return Exclusions(torch.stack([query * times + again, row], dim=1))

    def of_items(self, first_row: int, num_items: int) -> "Exclusions":
        """The contract of `Mask`."""
        row = self.pairs[:, 1] - first_row
        here = (row >= 0) & (row < num_items)
        return Exclusions(torch.stack([self.pairs[here, 0], row[here]], dim=1))


@dataclass(frozen=True)
class Remaining:
    """Items that remain for every query, and pairs of these that are hidden all the same.

    is_left: which items remain, on the CPU.
    excluded: pairs of which every row remains.
    """

    is_left: Bool[Tensor, " X"]
    excluded: Exclusions

    @classmethod
    def of(cls, is_left: Bool[Tensor, " X"], item_rows: Sequence[Sequence[int]]) -> "Remaining":
        """From the items that remain, and one sequence of further item rows per query of the batch."""
        kept = is_left.numpy()
        return cls(is_left, Exclusions.of([[row for row in rows if kept[row]] for rows in item_rows]))

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The rows that are hidden from every query, ascending."""
        return np.flatnonzero(self.is_hidden.numpy())

    @cached_property
    def num_hidden(self) -> int:
        """Number of items that are hidden from every query."""
        return len(self.is_left) - int(np.count_nonzero(self.is_left.numpy()))

    @cached_property
    def is_hidden(self) -> Bool[Tensor, " X"]:
        """Which items are hidden from every query."""
        return ~self.is_left

    def hide(self, scores: Float[Tensor, "B X"], first_row: int = 0) -> Float[Tensor, "B X"]:
        """The contract of `Mask`."""
        end = first_row + scores.shape[1]
        if FEW * self.num_hidden < len(self.is_left):
            here = slice(*np.searchsorted(self.rows, (first_row, end)))
            columns = torch.from_numpy(self.rows[here] - first_row)
            scores.index_fill_(1, upload(columns, scores.device), -torch.inf)
        else:
            is_hidden = upload(self.is_hidden[first_row:end], scores.device)
            # A seventh of the time of `masked_fill_` of 32 queries. Where inf becomes NaN, that counts as no item too.
            scores += torch.where(is_hidden, -torch.inf, 0.0)
        return self.excluded.hide(scores, first_row)

    def num_left(self, num_queries: int, num_items: int) -> Int[Tensor, " B"]:
        """The contract of `Mask`."""
        num_hidden = num_items - int(np.count_nonzero(self.is_left[:num_items].numpy()))
        return self.excluded.num_left(num_queries, num_items) - num_hidden

    def hidden_rows(self, num_queries: int, num_items: int) -> HiddenRows:
        """The contract of `Mask`. Queries that exclude nothing themselves share their rows."""
        shared = self.rows[: np.searchsorted(self.rows, num_items)]
        own = self.excluded.hidden_rows(num_queries, num_items)
        lists, place = [shared], len(shared)
        starts, ends = np.zeros(num_queries, np.int64), np.full(num_queries, len(shared))
        for query in np.flatnonzero(own.ends > own.starts).tolist():
            rows = np.union1d(shared, own.rows[own.starts[query] : own.ends[query]])
            lists.append(rows)
            starts[query], ends[query] = place, place + len(rows)
            place += len(rows)
        return HiddenRows(starts, ends, np.concatenate(lists))

    def of_queries(self, lines: Int[Tensor, " b"]) -> "Remaining":
        """The contract of `Mask`."""
        return Remaining(self.is_left, self.excluded.of_queries(lines))

    def repeat_each(self, times: int) -> "Remaining":
        """The contract of `Mask`."""
        return Remaining(self.is_left, self.excluded.repeat_each(times))

    def of_items(self, first_row: int, num_items: int) -> "Remaining":
        """The contract of `Mask`."""
        return Remaining(self.is_left[first_row : first_row + num_items], self.excluded.of_items(first_row, num_items))
