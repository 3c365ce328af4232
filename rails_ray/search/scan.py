"""The answer to `SearchSpec` from items that come block by block, in row order.

The answer does not depend on how the corpus is cut into blocks. An item whose score is NaN counts as none: it is never
found and takes no other item's place.

Axes: B queries, X items of a block, N items found in a block, C columns.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.kernels.reaching import num_reaching, reaching
from rails_ray.kernels.top_k import TopK, merge, merge_in_row_order, select
from rails_ray.search.gpu_scan import scan_on_gpu
from rails_ray.search.spec import LEAST, SearchResult, SearchSpec

MANY = 16  # if more than one score in so many reaches a threshold, the best are selected of all


class Scan:
    """Takes items in and keeps what is wanted. It holds at most 2 k items a query and what a block adds."""

    def __init__(self, spec: SearchSpec) -> None:
        self.spec = spec
        self.best = _Best(spec.least) if spec.least else None
        self.above = None if spec.threshold is None else _Above(spec.threshold, spec.k)

    @property
    def floor(self) -> Float[Tensor, " B"] | None:
        """A later item that scores below it is of no use; None if any item may be of use."""
        best = None if self.best is None else self.best.floor
        if self.above is None or self.best is None:
            return best if self.above is None else self.above.floor
        best = torch.full_like(self.above.reach, -torch.inf) if best is None else best
        return torch.where(self.above.num_above < self.spec.at_least, best, self.above.floor)

    def add(self, first_row: int, scores: Float[Tensor, "B X"]) -> None:
        """Take in the items first_row .. first_row + X - 1. Scores may be changed in place."""
        if self.spec.mask is not None:
            scores = self.spec.mask.hide(scores, first_row)
        if self.best is not None and (self.above is None or (self.above.num_above < self.spec.at_least).any()):
            self.best.add(first_row, scores)
        if self.above is not None:
            self.above.add(first_row, scores)

    def found(
        self,
        num_scored: Int[Tensor, " B"],
        num_left: Int[Tensor, " B"],
        *,
        bound: Float[Tensor, " B"] | None = None,
        reasons: Sequence[str | None] | None = None,
        item_rows: Int[Tensor, "B C"] | None = None,
    ) -> SearchResult:
        """The answer for all items that came.

        Args:
            num_left: items of the corpus that the answer may hold.
            bound, reasons: as in `SearchResult`, for the items that did not come; by default none can belong in it.
            item_rows: the item row of each column, if columns came in place of items; ascending, so that the lower
                row still wins a tie.
        """
        best = self._chosen(num_scored)
        if item_rows is not None:
            best = TopK(best.scores, item_rows.gather(1, best.item_rows))
        best = _cleared(best)
        if self.above is None:
            is_truncated = (num_left > self.spec.k) & (best.num_found() == self.spec.k)
        else:
            is_truncated = self.above.num_above > self.spec.k
        if bound is None:
            bound = torch.full_like(num_scored, -torch.inf, dtype=torch.float32)
        reasons = [None] * len(bound) if reasons is None else reasons
        return SearchResult(best.scores, best.item_rows, bound, is_truncated, num_scored, reasons)

    def _chosen(self, like: Int[Tensor, " B"]) -> TopK:
        best = None if self.best is None else self.best.top_k()
        if self.above is None:
            return _nothing(like) if best is None else best
        found = self.above.top_k()
        if best is not None:
            width = max(found.k, best.k)
            is_short = (self.above.num_above < self.spec.at_least)[:, None]
            found, best = _widened(found, width), _widened(best, width)
            found = TopK(
                torch.where(is_short, best.scores, found.scores), torch.where(is_short, best.item_rows, found.item_rows)
            )
        return trimmed(found)


def scan(
    blocks: Iterable[tuple[int, Float[Tensor, "B _"]]],
    spec: SearchSpec,
    num_queries: int,
    num_items: int,
    device: torch.device | None = None,
) -> SearchResult:
    """Search `num_items` items, all scored, from consecutive blocks (first item row, scores)."""
    if device is not None and device.type == "cuda":
        return scan_on_gpu(blocks, spec, num_queries, num_items, device)
    running = Scan(spec)
    for first_row, scores in blocks:
        running.add(first_row, scores)
    num_scored = torch.full((num_queries,), num_items, device=device)
    return running.found(num_scored, spec.num_left(num_queries, num_items, device))


class _Best:
    """The k best: one block, the k best of some time ago, and at most k items or a block's since then are held."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.parts: list[TopK] = []  # the k best first

    @property
    def floor(self) -> Float[Tensor, " B"] | None:
        """The k-th best score so far, which a later item must exceed; None before k items were seen."""
        best = self.top_k()
        return None if best is None or best.k < self.k else best.scores[:, -1]

    def add(self, first_row: int, scores: Float[Tensor, "B X"]) -> None:
        first = self.parts[0] if self.parts else None
        is_full = first is not None and first.k == self.k
        if first is None or not is_full:
            part = select(scores, self.k)
        else:
            part = _reaching(scores, first.scores[:, -1].clamp(min=LEAST), self.k)
        if part.k:
            self.parts.append(TopK(part.scores, part.item_rows + first_row))
        if not is_full or sum(part.k for part in self.parts[1:]) >= self.k:  # a merge takes as long as a small block
            self.top_k()

    def top_k(self) -> TopK | None:
        """The k best of all parts; None before any item was seen."""
        if len(self.parts) > 1:
            self.parts = [merge(self.parts, self.k)]
        return self.parts[0] if self.parts else None


class _Above:
    """All items that reach a threshold, at most the k best of them."""

    def __init__(self, threshold: Float[Tensor, " B"], k: int) -> None:
        self.k = k
        # The least score of use: the threshold, above -inf as that marks no item, and the k-th best beyond k items.
        self.reach = threshold.float().clamp(min=LEAST)
        self.num_above = torch.zeros_like(self.reach, dtype=torch.int64)  # exact up to k, then above it
        self.parts: list[TopK] = []
        self.num_pending = 0

    def add(self, first_row: int, scores: Float[Tensor, "B X"]) -> None:
        found = _reaching(scores, self.reach, self.k)
        if not found.k:
            return
        self.parts.append(TopK(found.scores, found.item_rows + first_row))
        self.num_above += found.num_found()
        self.num_pending += found.k
        if self.num_pending > self.k:
            self._merge()

    @property
    def floor(self) -> Float[Tensor, " B"]:
        """`reach` by all items that came, whatever came to the other queries."""
        if self.num_pending and (self.num_above > self.k).any():
            self._merge()
        return self.reach

    def _merge(self) -> None:
        self.parts, self.num_pending = [self.top_k()], 0
        is_full = self.num_above > self.k  # not before: an item left out would look like one below
        if is_full.any():
            self.reach = torch.where(is_full, self.parts[0].scores[:, -1], self.reach)

    def top_k(self) -> TopK:
        """The best of all parts. Equal scores stand in row order within a part and from part to part."""
        if not self.parts:
            return _nothing(self.reach)
        return merge_in_row_order(self.parts, self.k)


def trimmed(found: TopK) -> TopK:
    """`found` without the places that no line needs."""
    longest = int(found.num_found().max()) if len(found.scores) else 0
    return TopK(found.scores[:, :longest], found.item_rows[:, :longest])


def _reaching(scores: Float[Tensor, "B X"], reach: Float[Tensor, " B"], k: int) -> TopK:
    """The columns whose score is at least `reach`, in column order; if they are too many, the k + 1 best of each line,
    best first."""
    num = num_reaching(scores, reach)
    longest = int(num.max()) if len(num) else 0
    if longest > k and MANY * int(num.sum()) > scores.numel():  # a selection then takes less time
        best = select(scores, k + 1)
        return TopK(best.scores.masked_fill(best.scores < reach[:, None], -torch.inf), best.item_rows)
    query, column = reaching(scores, reach, num)
    place = torch.arange(len(query), device=query.device) - (num.cumsum(dim=0) - num)[query]
    found = TopK(scores.new_full((len(scores), longest), -torch.inf), column.new_zeros(len(scores), longest))
    found.scores[query, place] = scores[query, column]
    found.item_rows[query, place] = column
    return found


def _nothing(like: Tensor) -> TopK:
    return TopK(like.new_empty(len(like), 0, dtype=torch.float32), like.new_empty(len(like), 0, dtype=torch.int64))


def _widened(found: TopK, width: int) -> TopK:
    more = (0, width - found.k)
    return TopK(F.pad(found.scores, more, value=-torch.inf), F.pad(found.item_rows, more))


def _cleared(found: TopK) -> TopK:
    """`found` with row 0 at places without an item."""
    return TopK(found.scores, found.item_rows.masked_fill(found.scores == -torch.inf, 0))
