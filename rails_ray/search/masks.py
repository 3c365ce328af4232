"""Which items the answer to each query of a batch may not hold.

A `Mask` is all that a search knows about this: a scan hides items block by block, a method that widens its lists asks
how many items are left, and a compiled loop reads the hidden rows. Every mask must make the same answers as brute force
over the items that it leaves.

| member       | what it hides                                  |
|--------------|------------------------------------------------|
| `Exclusions` | pairs of query and item row, as requests have them |

Axes: B queries, X items, E excluded pairs.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.kernels.postings import HiddenRows


@runtime_checkable
class Mask(Protocol):
    """Hides items from the queries of a batch."""

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


@dataclass(frozen=True)
class Exclusions:
    """Pairs (query of the batch, item row) that no answer may hold, each pair once."""

    pairs: Int[Tensor, "E 2"]

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
        query, row = self.pairs.unbind(1)
        column = row - first_row
        here = (column >= 0) & (column < scores.shape[1])
        places = torch.stack([query[here], column[here]]).to(scores.device)
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
