"""The k best items of a score, exactly: select, merge, scan, exclude.

Every retrieval method, every block of a scan and every shard of a corpus ends here, so that all agree on what an
answer is: k distinct item rows, scores descending, equal scores by the lower row. The tie rule makes a result
independent of how the corpus was cut into blocks or shards.

Axes: B queries, X items, k results, E excluded pairs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor


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
    best, columns = scores.topk(k, dim=1)
    if k:
        # topk chooses freely among items equal to the k-th; where it had a choice, a stable sort decides.
        tied = (scores >= best[:, -1:]).sum(dim=1) > k
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


def scan(blocks: Iterable[tuple[int, Float[Tensor, "B _"]]], k: int, exclude: Exclusions | None = None) -> TopK:
    """The k best over consecutive blocks of items, each given as (its first item row, its scores).

    Only one block and the running k best are held at a time. Scores may be changed in place.
    """
    best: TopK | None = None
    for first_row, scores in blocks:
        if exclude is not None:
            scores = exclude.mask(scores, first_row)
        part = select(scores, k)
        part = TopK(part.scores, part.item_rows + first_row)
        best = part if best is None else merge([best, part], k)
    if best is None:
        raise ValueError("a scan needs at least 1 item, got none")
    return best
