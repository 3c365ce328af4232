"""All items whose score reaches a threshold, exactly: at most the cap best of them, and at least the best few.

The answer beside that of `top_k`, in the same order: scores descending, equal scores by the lower row, so that a result
does not depend on how the corpus was cut into blocks or shards. A score that equals the threshold reaches it.

Axes: B queries, X items, N items found in a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rails_ray.top_k import Exclusions, Scan, TopK, merge, select

GROUP = 32  # columns of which only the largest is compared, unless it reaches a threshold: few do


@dataclass(frozen=True)
class Above:
    """The items of each query at or above its threshold, and beside them what `at_least` asks for.

    top_k: as many places as the longest line needs, item row 0 where a place holds none.
    is_truncated: whether an item at or above the threshold was left out, as there were more of them than the cap.
    """

    top_k: TopK
    is_truncated: Bool[Tensor, " B"]


def check_above(num_queries: int, threshold: Float[Tensor, " _"], cap: int, at_least: int) -> None:
    """Raises:
    ValueError: unless there is a threshold per query and it is a number, infinity included, cap >= 1 and
        0 <= at_least <= cap.
    """
    if len(threshold) != num_queries:
        raise ValueError(f"threshold must be one number for each of {num_queries} queries, got {len(threshold)}")
    if threshold.isnan().any():
        raise ValueError(f"threshold must not be NaN, got NaN for query {int(threshold.isnan().nonzero()[0])}")
    if cap < 1:
        raise ValueError(f"cap must be at least 1, got {cap}")
    if not 0 <= at_least <= cap:
        raise ValueError(f"at_least must be at least 0 and at most the cap of {cap}, got {at_least}")


class ScanAbove:
    """All items with score >= threshold, at most the `cap` best of them, of items that come block by block, in row
    order; where fewer than `at_least` reach it, the `at_least` best items instead. Held are at most 2 * cap items a
    query and what a block adds.

    Args:
        threshold: in float32, in which it is compared; -inf for every item, inf for none.
    """

    def __init__(
        self, threshold: Float[Tensor, " B"], cap: int, at_least: int = 0, exclude: Exclusions | None = None
    ) -> None:
        self.cap = cap
        self.at_least = at_least
        self.exclude = exclude
        # The least score of use: the threshold, above -inf as that marks no item, and the cap-th best beyond the cap.
        self.reach = threshold.float().clamp(min=torch.finfo(torch.float32).min)
        self.num_above = torch.zeros_like(self.reach, dtype=torch.int64)  # exact up to the cap, then above it
        self.parts: list[TopK] = []
        self.num_pending = 0
        self.best = Scan(at_least) if at_least else None

    @property
    def floor(self) -> Float[Tensor, " B"]:
        """A later item that scores below it is of no use."""
        if self.best is None:
            return self.reach
        best = self.best.floor
        best = torch.full_like(self.reach, -torch.inf) if best is None else best
        return torch.where(self.num_above < self.at_least, best, self.reach)

    def add(self, first_row: int, scores: Float[Tensor, "B X"]) -> None:
        """Take in the items first_row .. first_row + X - 1. Scores may be changed in place."""
        if self.exclude is not None:
            scores = self.exclude.mask(scores, first_row)
        if self.best is not None and (self.num_above < self.at_least).any():
            self.best.add(first_row, scores)
        in_groups = scores.shape[1] // GROUP * GROUP
        self._take(first_row, scores[:, :in_groups], GROUP)
        self._take(first_row + in_groups, scores[:, in_groups:], 1)

    def _take(self, first_row: int, scores: Float[Tensor, "B X"], group: int) -> None:
        found = _reaching(scores, self.reach, self.cap, group)
        if not found.k:
            return
        self.parts.append(TopK(found.scores, found.item_rows + first_row))
        self.num_above += found.num_found()
        self.num_pending += found.k
        if self.num_pending > self.cap:
            self.parts, self.num_pending = [self._found()], 0
            is_full = self.num_above > self.cap  # only then, or who was left out could not be told from who is below
            if is_full.any():
                self.reach = torch.where(is_full, self.parts[0].scores[:, -1], self.reach)

    def _found(self) -> TopK:
        """The best of all parts. Equal scores stand in row order within a part and from part to part."""
        scores = torch.cat([part.scores for part in self.parts], dim=1)
        item_rows = torch.cat([part.item_rows for part in self.parts], dim=1)
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        return TopK(scores[:, : self.cap], item_rows.gather(1, order[:, : self.cap]))

    def above(self) -> Above:
        """The answer for all items that came."""
        found = self._found() if self.parts else _nothing(self.reach)
        if self.best is not None and self.best.best is not None:
            best = self.best.best
            width = max(found.k, best.k)
            is_short = (self.num_above < self.at_least)[:, None]
            found, best = _widened(found, width), _widened(best, width)
            found = TopK(
                torch.where(is_short, best.scores, found.scores), torch.where(is_short, best.item_rows, found.item_rows)
            )
        return Above(_trimmed(found), self.num_above > self.cap)


def merge_above(parts: Sequence[Above], threshold: Float[Tensor, " B"], cap: int, at_least: int = 0) -> Above:
    """The answer of the whole from those of its shards to the same question, over disjoint items."""
    whole = merge([part.top_k for part in parts], sum(part.top_k.k for part in parts))
    reach = threshold.float().clamp(min=torch.finfo(torch.float32).min)
    num_above = (whole.scores >= reach[:, None]).sum(dim=1)
    num_kept = num_above.clamp(min=at_least, max=cap)
    place = torch.arange(whole.k, device=whole.scores.device)
    kept = whole.scores.masked_fill(place >= num_kept[:, None], -torch.inf)
    is_truncated = torch.stack([part.is_truncated for part in parts]).any(dim=0) | (num_above > cap)
    return Above(_trimmed(TopK(kept, whole.item_rows)), is_truncated)


def _reaching(scores: Float[Tensor, "B X"], reach: Float[Tensor, " B"], cap: int, group: int) -> TopK:
    """The columns whose score is at least `reach`, in column order; where they are too many, the cap + 1 best of each
    line, best first."""
    if not scores.numel():
        return _nothing(reach)
    groups = scores.unflatten(1, (-1, group))
    is_hit = groups.amax(dim=2) >= reach[:, None]
    query, number = is_hit.nonzero(as_tuple=True)
    if 2 * len(query) > is_hit.numel() and int(query.bincount().max()) > cap:  # a selection then takes less time
        best = select(scores, cap + 1)
        return TopK(best.scores.masked_fill(best.scores < reach[:, None], -torch.inf), best.item_rows)
    hit, place = (groups[query, number] >= reach[query, None]).nonzero(as_tuple=True)
    return _lines(query[hit], number[hit] * group + place, scores)


def _lines(query: Int[Tensor, " N"], column: Int[Tensor, " N"], scores: Float[Tensor, "B X"]) -> TopK:
    """Places of `scores`, ordered by query, as one line per query."""
    num = query.bincount(minlength=len(scores))
    place = torch.arange(len(query), device=query.device) - (num.cumsum(dim=0) - num)[query]
    shape = len(scores), int(num.max())
    found = TopK(scores.new_full(shape, -torch.inf), column.new_zeros(shape))
    found.scores[query, place] = scores[query, column]
    found.item_rows[query, place] = column
    return found


def _nothing(like: Float[Tensor, " B"]) -> TopK:
    return TopK(like.new_empty(len(like), 0), like.new_empty(len(like), 0, dtype=torch.int64))


def _widened(found: TopK, width: int) -> TopK:
    more = (0, width - found.k)
    return TopK(F.pad(found.scores, more, value=-torch.inf), F.pad(found.item_rows, more))


def _trimmed(found: TopK) -> TopK:
    """As many places as the longest line needs, and row 0 where there is no item."""
    longest = int(found.num_found().max()) if len(found.scores) else 0
    scores, item_rows = found.scores[:, :longest], found.item_rows[:, :longest]
    return TopK(scores, item_rows.masked_fill(scores == -torch.inf, 0))
