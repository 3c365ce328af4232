"""Question and answer of every index, retriever, shard and merge of shards.

    reached(q) = the score that an item missing from q's list had to reach to belong in it
    gap(q)     = max(bound(q) - reached(q), 0)

A short list is no error: if fewer items are left or found than were wanted, its last places are padded.

Axes: B queries, k items that are wanted at most, n places of a list, n <= k.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rails_ray.kernels.top_k import TopK, select
from rails_ray.kernels.uploads import upload
from rails_ray.search.masks import Mask

LEAST = torch.finfo(torch.float32).min  # the least score that an item can be found with: -inf marks none


@dataclass(frozen=True)
class SearchSpec:
    """The k best items of each query. With a threshold, only items that score at least the query's threshold, but the
    `at_least` best if fewer reach it.

    Args:
        threshold: compared in float32; -inf for every item, inf for none. A score that equals it reaches it.
        at_least: with a threshold, items that are wanted whatever their scores. Without one, items for which an index
            looks further than it does by default.
        mask: items that no answer may hold; None for none.
    """

    k: int
    threshold: Float[Tensor, " B"] | None = None
    at_least: int = 0
    mask: Mask | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")
        if not 0 <= self.at_least <= self.k:
            raise ValueError(f"at_least must be at least 0 and at most the k of {self.k}, got {self.at_least}")
        # On a GPU this would wait for it: thresholds are checked before they are brought there.
        if self.threshold is not None and self.threshold.is_cpu and self.threshold.isnan().any():
            number = int(self.threshold.isnan().nonzero()[0])
            raise ValueError(f"threshold must not be NaN, got NaN for query {number}")

    @property
    def least(self) -> int:
        """How many items are wanted, whatever their scores."""
        return self.k if self.threshold is None else self.at_least

    def check_queries(self, num_queries: int) -> None:
        """Raises:
        ValueError: unless there is a threshold for each query.
        """
        if self.threshold is not None and len(self.threshold) != num_queries:
            raise ValueError(
                f"threshold must be one number for each of {num_queries} queries, got {len(self.threshold)}"
            )

    def num_left(self, num_queries: int, num_items: int, device: torch.device | None = None) -> Int[Tensor, " B"]:
        """How many of `num_items` items the answer to each query may hold."""
        if self.mask is None:
            return torch.full((num_queries,), num_items, device=device)
        return upload(self.mask.num_left(num_queries, num_items), device)

    def of_queries(self, lines: Int[Tensor, " b"]) -> "SearchSpec":
        """Select some queries, as a batch of their own.

        Args:
            lines: their numbers, ascending.
        """
        threshold = None if self.threshold is None else self.threshold[upload(lines, self.threshold.device)]
        return SearchSpec(self.k, threshold, self.at_least, None if self.mask is None else self.mask.of_queries(lines))


@dataclass(frozen=True)
class SearchResult(TopK):
    """
    scores, item_rows: distinct items, none of them hidden, scores descending, equal scores by the lower row; -inf and
        row 0 at places that hold none. With a threshold there are as many places as the longest list needs.
    bound: no item that was passed over scores above it, rounding included; -inf if no such item can belong in THIS
        list, as the index tells by its own scores, inf if nothing is known. It answers the `SearchSpec` that was
        asked and no other question: `ceiling` is what holds of every missing item.
    is_truncated: whether an item at or above the threshold (any item, without a threshold) was left out because there
        were more than k.
    num_scored: items whose score was computed, but for those whose largest cosine shows that they cannot belong in the
        list.
    reasons: of each query whose bound is inf, why nothing is known about the items that were passed over; None of
        the others.

    What is said of a query does not depend on the other queries of its batch.
    """

    bound: Float[Tensor, " B"]
    is_truncated: Bool[Tensor, " B"]
    num_scored: Int[Tensor, " B"]
    reasons: Sequence[str | None]

    def gap(self, spec: SearchSpec) -> Float[Tensor, " B"]:
        """How far an item missing from a list can score above what it had to reach: 0 if the list is exact, inf if
        nothing is known. If a list is shorter than `spec.least`, any missing item belongs in it: the gap is inf
        unless nothing was passed over."""
        reached = self._reached(spec)
        return gap_to(self.bound, reached.masked_fill(self.num_found() < spec.least, -torch.inf))

    def ceiling(self, spec: SearchSpec) -> Float[Tensor, " B"]:
        """A score that no item missing from a list exceeds, be it one that belongs in the list or not; -inf if none is
        missing, as far as a search without a threshold can tell. Needed by every caller that asks another question
        than `spec`."""
        reached = self._reached(spec)
        if spec.threshold is None:
            reached = reached.masked_fill(~self.is_truncated, -torch.inf)
        return torch.maximum(self.bound, reached)

    def as_cosines(self) -> "SearchResult":
        """Bring scores, which rounding may have left a little outside, into [-1, 1]."""
        if not self.scores.numel():
            return self
        bound = torch.where(self.bound.isposinf(), self.bound, self.bound.clamp(max=1))
        least, most = (end.item() for end in self.scores.aminmax())  # numbers compare sooner than tensors
        if least >= -1 and most <= 1:
            return replace(self, bound=bound)
        is_outside = (self.scores.abs() > 1) & (self.scores > -torch.inf)
        if not is_outside.any():
            return replace(self, bound=bound)
        best = select(torch.where(is_outside, self.scores.sign(), self.scores), self.k, self.item_rows)
        return replace(self, scores=best.scores, item_rows=best.item_rows, bound=bound)

    def on(self, device: torch.device | str) -> "SearchResult":
        """Return the result in a device's memory."""
        names = ("scores", "item_rows", "bound", "is_truncated", "num_scored")
        return SearchResult(**{name: getattr(self, name).to(device) for name in names}, reasons=self.reasons)

    def first(self, num: int) -> "SearchResult":
        """Return the first so many places of each list."""
        return replace(self, scores=self.scores[:, :num], item_rows=self.item_rows[:, :num])

    def of_queries(self, lines: Int[Tensor, " b"]) -> "SearchResult":
        """Select the results of some queries, in this order."""
        return SearchResult(
            self.scores[lines],
            self.item_rows[lines],
            self.bound[lines],
            self.is_truncated[lines],
            self.num_scored[lines],
            [self.reasons[line] for line in lines.tolist()],
        )

    def _reached(self, spec: SearchSpec) -> Float[Tensor, " B"]:
        """The score that a missing item had to reach, of lists that are long enough."""
        last = torch.cat([self.scores, torch.full_like(self.bound, torch.inf)[:, None]], dim=1)
        last = last.masked_fill(last == -torch.inf, torch.inf).amin(dim=1)
        return last if spec.threshold is None else needed(last, spec.threshold.float(), self.is_truncated)


def needed(
    last: Float[Tensor, " B"], threshold: Float[Tensor, " B"], is_truncated: Bool[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """The score that an item missing from a list had to reach: the threshold or, if the list ends above it or goes on
    below it, the last score of the list.

    Args:
        last: last score of each list; inf if the list is empty.
    """
    return torch.where(is_truncated, last, torch.minimum(threshold, last))


def gap_to(bound: Float[Tensor, " B"], reached: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """How far the bound lies above what a missing item had to reach; 0 where it does not."""
    return torch.where(bound > reached, bound - reached, 0.0)  # not NaN where both are infinite


def reasons_of(bound: Float[Tensor, " B"], reason: str | None) -> list[str | None]:
    """`reason` for each query of which nothing is known."""
    return [reason if is_unknown else None for is_unknown in bound.isposinf().tolist()]


def nothing(num_queries: int, device: torch.device | str = "cpu") -> SearchResult:
    """The results of queries where no item may be found."""
    none = torch.zeros(num_queries, 0, device=device)
    number = torch.zeros(num_queries, dtype=torch.int64, device=device)
    bound = torch.full((num_queries,), -torch.inf, device=device)
    return SearchResult(none, none.long(), bound, number.bool(), number, [None] * num_queries)


def joined(parts: Sequence[SearchResult], lines: Int[Tensor, " B"] | None = None) -> SearchResult:
    """Join the results of parts of a batch of queries.

    Args:
        lines: the number of each query of the parts, one part after the other; by default they are in order.
    """
    longest = max(part.k for part in parts)
    found = SearchResult(
        torch.cat([F.pad(part.scores, (0, longest - part.k), value=-torch.inf) for part in parts]),
        torch.cat([F.pad(part.item_rows, (0, longest - part.k)) for part in parts]),
        torch.cat([part.bound for part in parts]),
        torch.cat([part.is_truncated for part in parts]),
        torch.cat([part.num_scored for part in parts]),
        [reason for part in parts for reason in part.reasons],
    )
    return found if lines is None else found.of_queries(lines.argsort())
