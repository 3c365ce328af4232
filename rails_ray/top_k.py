"""The k best items of a score, exactly: select, merge, scan, exclude, each item once.

Every retrieval method, every block of a scan and every shard of a corpus ends here, so that all agree on what an
answer is: k distinct item rows, scores descending, equal scores by the lower row. The tie rule makes a result
independent of how the corpus was cut into blocks or shards.

Axes: B queries, X items, k results, E excluded pairs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

NO_ROW = 2**62  # beyond every item row


@dataclass(frozen=True)
class TopK:
    """The best items of each query, scores descending. A score of -inf marks a place for which no item was left."""

    scores: Float[Tensor, "B k"]
    item_rows: Int[Tensor, "B k"]

    @property
    def k(self) -> int:
        return self.scores.shape[1]

    def __reduce__(self) -> tuple[Any, ...]:  # to another process as arrays, in a tenth of the time of tensors
        return _top_k, (self.scores.numpy(force=True), self.item_rows.numpy(force=True))

    def num_found(self) -> Int[Tensor, " B"]:
        """How many places hold an item."""
        return (self.scores > -torch.inf).sum(dim=1)

    def exactly_k(self) -> "TopK":
        """This result, if every place holds an item.

        Raises:
            ValueError: if exclusion left a query with fewer than k items.
        """
        fewest = int(self.num_found().min()) if len(self.scores) else self.k
        if fewest < self.k:
            raise ValueError(f"k must be at most the {fewest} items left after exclusion, got {self.k}")
        return self


def _top_k(scores: NDArray[Any], item_rows: NDArray[Any]) -> TopK:
    return TopK(torch.tensor(scores), torch.tensor(item_rows))


@dataclass(frozen=True)
class Exclusions:
    """Pairs (query of the batch, item row) that no answer may hold."""

    pairs: Int[Tensor, "E 2"]

    @classmethod
    def of(cls, item_rows: Sequence[Sequence[int]]) -> "Exclusions":
        """From one sequence of item rows per query of the batch."""
        pairs = [(query, row) for query, rows in enumerate(item_rows) for row in rows]
        return cls(torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2))

    def repeat_each(self, times: int) -> "Exclusions":
        """For a batch in which each query stands so many times in a row."""
        query, row = self.pairs.repeat_interleave(times, dim=0).unbind(1)
        again = torch.arange(times, device=self.pairs.device).repeat(len(self.pairs))
        return Exclusions(torch.stack([query * times + again, row], dim=1))

    def mask(self, scores: Float[Tensor, "B X"], first_row: int = 0) -> Float[Tensor, "B X"]:
        """`scores` of the items first_row .. first_row + X - 1 with -inf at the excluded ones (changed in place)."""
        query, row = self.pairs.to(scores.device).unbind(1)
        column = row - first_row
        here = (column >= 0) & (column < scores.shape[1])
        scores[query[here], column[here]] = -torch.inf
        return scores


def check_k(k: int, num_items: int) -> None:
    """Raises:
    ValueError: unless 1 <= k <= num_items.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if k > num_items:
        raise ValueError(f"k must be at most the {num_items} indexed items, got {k}")


def select(scores: Float[Tensor, "B X"], k: int, item_rows: Int[Tensor, "B X"] | None = None) -> TopK:
    """The min(k, X) best columns of each row of `scores`.

    Args:
        item_rows: the item row of each column, distinct in each line; the column number where it is not given.
    """
    if item_rows is not None:  # with columns in row order, the lower column is the lower row
        item_rows, order = item_rows.sort(dim=1)
        scores = scores.gather(1, order)
    k = min(k, scores.shape[1])
    best, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    if 0 < k < best.shape[1]:
        # topk chooses freely among items equal to the k-th; where it had a choice, a stable sort decides.
        tied = best[:, k] == best[:, k - 1]
        columns = columns[:, :k]
        if tied.any():
            columns[tied] = scores[tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    columns = columns.sort(dim=1).values
    best = scores.gather(1, columns)
    best, order = best.sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    return TopK(best, columns if item_rows is None else item_rows.gather(1, columns))


def merge(parts: Sequence[TopK], k: int) -> TopK:
    """The k best of several results over disjoint items (blocks of a scan, shards of a corpus)."""
    scores = torch.cat([part.scores for part in parts], dim=1)
    return select(scores, k, torch.cat([part.item_rows for part in parts], dim=1))


class Scan:
    """The k best of items that come block by block, in row order; one block and the running k best are held."""

    def __init__(self, k: int, exclude: Exclusions | None = None) -> None:
        self.k = k
        self.exclude = exclude
        self.best: TopK | None = None

    @property
    def floor(self) -> Float[Tensor, " B"] | None:
        """The k-th best score so far, which a later item must exceed; None before k items were seen."""
        return None if self.best is None or self.best.k < self.k else self.best.scores[:, -1]

    def add(self, first_row: int, scores: Float[Tensor, "B X"]) -> None:
        """Take in the items first_row .. first_row + X - 1. Scores may be changed in place."""
        if self.exclude is not None:
            scores = self.exclude.mask(scores, first_row)
        part = select(scores, self.k)
        part = TopK(part.scores, part.item_rows + first_row)
        self.best = part if self.best is None else merge([self.best, part], self.k)

    def top_k(self) -> TopK:
        """The min(k, items) best.

        Raises:
            ValueError: if no item came.
        """
        if self.best is None:
            raise ValueError("a scan needs at least 1 item, got none")
        return self.best


def scan(blocks: Iterable[tuple[int, Float[Tensor, "B _"]]], k: int, exclude: Exclusions | None = None) -> TopK:
    """The k best over consecutive blocks of items, each given as (its first item row, its scores)."""
    running = Scan(k, exclude)
    for first_row, scores in blocks:
        running.add(first_row, scores)
    return running.top_k()


def distinct(
    item_rows: Int[Tensor, "B C"], is_there: Bool[Tensor, "B C"]
) -> tuple[Int[Tensor, "B _"], Bool[Tensor, "B _"]]:
    """Each line's item rows once, ascending, and which places of a line hold one: as many as the longest line needs."""
    rows = item_rows.masked_fill(~is_there, NO_ROW).sort(dim=1).values
    is_again = torch.zeros_like(is_there)
    is_again[:, 1:] = rows[:, 1:] == rows[:, :-1]
    rows = rows.masked_fill(is_again, NO_ROW).sort(dim=1).values
    is_there = rows < NO_ROW
    longest = int(is_there.sum(dim=1).max()) if len(rows) else rows.shape[1]
    rows, is_there = rows[:, :longest], is_there[:, :longest]
    return rows.masked_fill(~is_there, 0), is_there
