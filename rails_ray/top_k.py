"""The k best items of a score, or all that reach a threshold, exactly: select, merge, scan, exclude, each item once.

Every retrieval method, every block of a scan and every shard of a corpus ends here, so that all agree on what an
answer is: k distinct item rows, scores descending, equal scores by the lower row. The tie rule makes a result
independent of how the corpus was cut into blocks or shards.

Axes: B queries, X items, k results, E excluded pairs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

NO_ROW = 2**62  # beyond every item row
GROUP = 32  # columns of which only the largest is compared, unless it reaches a threshold: few do


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
