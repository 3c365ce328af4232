"""The answer to `SearchSpec` from lists of the n best items, which are asked for again, longer, until they hold it.

    complete(q)   the n-th score < the last score that belongs in the answer, or there is no n-th item

It is for a search that knows nothing but n: no threshold, no items hidden from one query alone, no rule for equal
scores. A threshold in a list of scores that descend is a place in it; hidden items take places of a longer list; items
that may equal the last one are in a list that goes on below it.

Axes: B queries, X items, b lines (queries whose lists come in), n places of a list, k items that are wanted at most.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from numpy.typing import NDArray

from rails_ray.search.spec import SearchResult, SearchSpec

SPARE = 64  # places more of the first list if hidden items may be in it
MOST_DROPPED = 1024  # hidden items of a query that are dropped from its list; a search must pass over more of them


class Growth(NamedTuple):
    """How a search goes from list to list.

    first: n of the first list with a threshold.
    factor: of n, from one list to the next.
    is_loose: whether a list that ends with a score equal to the last wanted one counts as complete.
    """

    first: int
    factor: int
    is_loose: bool


class Call(NamedTuple):
    """
    lines: to ask for together.
    first: n of their first lists.
    left: the items that may be in them; None for all.
    has_hidden: whether some of these may be hidden from some of the lines.
    """

    lines: Int64[np.ndarray, " b"]
    first: int
    left: Bool[np.ndarray, " X"] | None = None
    has_hidden: bool = False


SCAN = Growth(512, 8, False)  # of vectors, which takes about as long for 500 items as for 10
WALK = Growth(128, 2, True)  # of a graph, which takes as long as its list is


class GrownLists:
    """Takes lists in and keeps what is wanted."""

    def __init__(self, spec: SearchSpec, num_queries: int, num_items: int, growth: Growth) -> None:
        self.num_items = num_items
        self.growth = growth
        self.k = min(spec.k, num_items)
        self.least = min(spec.least, num_items)
        self.reach: NDArray[np.float32] | None = None
        if spec.threshold is not None:  # above -inf, as that marks no item
            self.reach = spec.threshold.float().clamp(min=torch.finfo(torch.float32).min).numpy(force=True)
        self.left: NDArray[np.bool_] | None = None
        self.hidden, mask = None, spec.mask
        if mask is not None and mask.is_left is not None:  # one set of items that a search passes over for all queries
            is_left = mask.is_left[:num_items].numpy()
            if num_items - np.count_nonzero(is_left) > MOST_DROPPED:
                self.left, mask = is_left, mask.excluded
        if mask is not None:
            self.hidden = mask.hidden_rows(num_queries, num_items)
        self.num_above = np.zeros(num_queries, np.int64)  # that reach the threshold: exact up to k, then above it
        self.num_found = np.zeros(num_queries, np.int64)
        self.num_seen = np.zeros(num_queries, np.int64)
        self.lists: list[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]] = []

    def calls(self) -> Iterator[Call]:
        """All lines. How each is asked depends on nothing but its own hidden rows."""
        lines = np.arange(len(self.num_found) if self.num_items else 0)
        num = self.k if self.reach is None else max(self.least, min(self.k, self.growth.first))
        first, longer = (min(num + 1 + spare, self.num_items) for spare in (0, SPARE))
        if self.hidden is None:
            yield Call(lines, first)
            return
        starts, ends, rows = self.hidden.starts[: len(lines)], self.hidden.ends[: len(lines)], self.hidden.rows
        num_hidden = ends - starts
        yield Call(lines[num_hidden == 0], first, self.left)
        yield Call(lines[(num_hidden > 0) & (num_hidden <= MOST_DROPPED)], longer, self.left, has_hidden=True)
        for start, end in np.unique(np.stack([starts, ends], axis=1)[num_hidden > MOST_DROPPED], axis=0):
            left = np.ones(self.num_items, np.bool_) if self.left is None else self.left.copy()
            left[rows[start:end]] = False
            yield Call(lines[(starts == start) & (ends == end)], first, left)

    def longer(self, n: int) -> int:
        """n of the lists that follow."""
        return min(n * self.growth.factor, self.num_items)

    def add(
        self,
        lines: Int64[np.ndarray, " b"],
        scores: Float32[np.ndarray, "b n"],
        item_rows: Int64[np.ndarray, "b n"],
        *,
        has_hidden: bool,
    ) -> Bool[np.ndarray, " b"]:
        """Take in the n best items of some lines, scores descending, row -1 at places that hold none (changed in
        place). Whether each list is complete.

        Args:
            has_hidden: as `Call` has it.
        """
        width = scores.shape[1]
        is_none = item_rows < 0
        descends = bool(((scores[:, 1:] < scores[:, :-1]) | is_none[:, 1:]).all())
        is_plain = self.reach is None and not has_hidden and width > self.k
        if is_plain and descends and not is_none[:, self.k].any():  # k items and a worse one: as a rule
            self._keep(lines, scores, item_rows)
            self.num_found[lines], self.num_seen[lines] = self.k, width
            return np.ones(len(lines), np.bool_)
        scores[is_none] = -np.inf
        last = scores[:, -1].copy()
        if width == self.num_items:
            last[:] = -np.inf
        self.num_seen[lines] = width - is_none.sum(axis=1)
        if has_hidden:
            scores[self._is_hidden(lines, item_rows)] = -np.inf
            order = np.lexsort((item_rows, -scores))
            scores, item_rows = np.take_along_axis(scores, order, 1), np.take_along_axis(item_rows, order, 1)
        elif not descends:
            sort_equal(scores, item_rows)
        self._keep(lines, scores, item_rows)
        is_complete: NDArray[np.bool_] = (last == -np.inf) | self._passes(last, self._end(lines, scores))
        if self.reach is not None and width > self.k:
            is_complete |= (self.num_above[lines] > self.k) & self._passes(last, scores[:, self.k - 1])
        return is_complete

    def replace(self, lines: Int64[np.ndarray, " b"], found: SearchResult) -> None:
        """Take in the answer to some lines."""
        scores = found.scores.numpy(force=True)
        self.lists.append((lines, scores, found.item_rows.numpy(force=True)))
        self.num_found[lines] = (scores > -np.inf).sum(axis=1)
        is_truncated = found.is_truncated.numpy(force=True)
        self.num_above[lines] = np.where(is_truncated, self.k + 1, self.num_found[lines])

    def _keep(self, lines: NDArray[np.int64], scores: NDArray[np.float32], item_rows: NDArray[np.int64]) -> None:
        """A copy, which does not hold a long list in memory."""
        self.lists.append((lines, scores[:, : self.k].copy(), item_rows[:, : self.k].copy()))

    def _end(self, lines: NDArray[np.int64], scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """The last score that belongs in each answer; -inf if it has not come."""
        num_there = (scores > -np.inf).sum(axis=1)
        if not self.least:
            least = np.full(len(lines), np.inf, np.float32)
        elif self.least > scores.shape[1]:
            least = np.full(len(lines), -np.inf, np.float32)
        else:
            least = scores[:, self.least - 1]
        if self.reach is None:
            self.num_found[lines] = np.minimum(num_there, self.k)
            return least
        reach = self.reach[lines]
        num_above = (scores >= reach[:, None]).sum(axis=1)
        self.num_above[lines] = num_above
        self.num_found[lines] = np.minimum(np.minimum(np.maximum(num_above, self.least), self.k), num_there)
        return np.where(num_above >= self.least, reach, least)

    def _passes(self, last: NDArray[np.float32], end: NDArray[np.float32]) -> NDArray[np.bool_]:
        return last <= end if self.growth.is_loose else last < end

    def _is_hidden(self, lines: NDArray[np.int64], item_rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the lists' items are hidden, by one search in all (line, row) as ascending numbers."""
        assert self.hidden is not None
        starts, ends = self.hidden.starts[lines], self.hidden.ends[lines]
        num = ends - starts
        place = np.arange(num.sum()) + np.repeat(starts - (num.cumsum() - num), num)
        base = np.arange(len(lines)) * self.num_items
        hidden = np.append(np.repeat(base, num) + self.hidden.rows[place], np.iinfo(np.int64).max)
        places = base[:, None] + item_rows
        is_hidden: NDArray[np.bool_] = hidden[np.searchsorted(hidden, places)] == places
        return is_hidden

    def found(self) -> tuple[Float32[np.ndarray, "B _"], Int64[np.ndarray, "B _"]]:
        """Scores and item rows of the answer, padded with -inf and row 0. With a threshold there are as many places as
        the longest list needs, else k."""
        num = len(self.num_found)
        width = self.k if self.reach is None else int(self.num_found.max(initial=0))
        if len(self.lists) == 1 and (self.num_found == width).all():
            _, scores, item_rows = self.lists[0]
            return np.ascontiguousarray(scores[:, :width]), np.ascontiguousarray(item_rows[:, :width])
        scores, item_rows = np.full((num, width), -np.inf, np.float32), np.zeros((num, width), np.int64)
        for lines, own_scores, own_rows in self.lists:  # a longer list comes after the shorter ones of its lines
            end = min(width, own_scores.shape[1])
            is_there = np.arange(end) < self.num_found[lines][:, None]
            scores[lines, :end] = np.where(is_there, own_scores[:, :end], -np.inf)
            item_rows[lines, :end] = np.where(is_there, own_rows[:, :end], 0)
        return scores, item_rows


def sort_equal(scores: Float32[np.ndarray, "b n"], item_rows: Int64[np.ndarray, "b n"]) -> None:
    """Put items of equal scores in the order of their rows, in place. Scores descend."""
    follows = np.zeros(scores.shape, np.bool_)
    follows[:, 1:] = (scores[:, 1:] == scores[:, :-1]) & (scores[:, 1:] > -np.inf)
    is_equal = follows.copy()
    is_equal[:, :-1] |= follows[:, 1:]
    runs = (~follows).cumsum()[is_equal.ravel()]
    rows = item_rows[is_equal]
    item_rows[is_equal] = rows[np.lexsort((rows, runs))]
