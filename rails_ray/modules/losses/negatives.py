"""Which items a query is trained against: what each item of a batch is to each of its queries.

An item x that is drawn with probability Q(x) stands for 1 / (X Q(x)) items that are drawn uniformly, so that the sum
over a sample estimates the sum over the corpus whatever the items are drawn by:

    phi'(q, x) = phi(q, x) - log( X Q(x) )          for negatives

Source: Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (the logQ correction).
Differs from the source: a positive, which is not drawn, keeps its logit.

Axes: B queries, N items of the batch, M relevant pairs, X items of the corpus.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class BatchRelevance(NamedTuple):
    """The relevant pairs of a batch: query number in 0 .. B - 1, and item row."""

    query: Int[Tensor, " M"]
    item_row: Int[Tensor, " M"]


class Roles(NamedTuple):
    """Roles of each item for each query.

    positive: column of the item that the query is trained towards.
    is_relevant: the positive, and the other items that answer the query: accidental hits, which are no negatives.
    is_negative: the items that the query is trained against. An item that is neither is left out.
    log_weights: log of how many items of the corpus a negative stands for, less that of a uniform draw; None for 0.
    """

    positive: Int[Tensor, " B"]
    is_relevant: Bool[Tensor, "B N"]
    is_negative: Bool[Tensor, "B N"]
    log_weights: Float[Tensor, "B N"] | None = None

    @property
    def is_hidden(self) -> Bool[Tensor, "B N"]:
        """The items that a softmax leaves out: all but the positive and the negatives."""
        return (~self.is_negative).scatter(1, self.positive.unsqueeze(1), False)

    def of_queries(self, queries: slice) -> "Roles":
        """The roles for some of the queries."""
        weights = None if self.log_weights is None else self.log_weights[queries]
        return Roles(self.positive[queries], self.is_relevant[queries], self.is_negative[queries], weights)

    def weighted(self, logits: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        """Logits of which each negative's stands for as many items as a uniform draw's (the logQ correction)."""
        return logits if self.log_weights is None else logits + self.log_weights * self.is_negative


def roles(item_rows: Int[Tensor, " N"], positive: Int[Tensor, " B"], relevance: BatchRelevance) -> Roles:
    """The roles of a batch's items. Each column is an item of its own, though rows may repeat."""
    is_relevant = are_relevant(item_rows, len(positive), relevance)
    is_relevant[torch.arange(len(positive), device=positive.device), positive] = True
    return Roles(positive, is_relevant, ~is_relevant)


def roles_among_copies(
    item_rows: Int[Tensor, " N"],
    is_copy: Bool[Tensor, " N"],
    positive: Int[Tensor, " B"],
    positive_row: Int[Tensor, " B"],
    relevance: BatchRelevance,
) -> Roles:
    """The roles if several workers may have encoded the same item: each query meets an item once.

    A query meets its own positive, and the first copy of every other item.

    Args:
        is_copy: whether an earlier column is the same item: `are_copies` of all columns, which may be more than these.
        positive: column of each query's positive; outside 0 .. N - 1 if these columns do not hold it.
        positive_row: its item row.
    """
    is_own = torch.arange(len(item_rows), device=item_rows.device) == positive.unsqueeze(1)
    is_met = ~is_copy & (item_rows != positive_row.unsqueeze(1))
    is_relevant = are_relevant(item_rows, len(positive), relevance)
    return Roles(positive, is_own | (is_relevant & is_met), ~is_relevant & is_met)


def are_relevant(item_rows: Int[Tensor, " N"], num_queries: int, relevance: BatchRelevance) -> Bool[Tensor, "B N"]:
    """Return whether an item answers a query."""
    num = len(item_rows)
    hits = torch.zeros(num + 1, num_queries, dtype=torch.bool, device=item_rows.device)
    if not num:
        return hits[:0].T
    # Equal rows share the place of the first; rows of no column have the last one. No size depends on what is found, as
    # the host would have to wait for a GPU.
    ordered = item_rows.sort().values
    at = torch.searchsorted(ordered, relevance.item_row)
    is_there = ordered[at.clamp(max=num - 1)] == relevance.item_row
    hits[torch.where(is_there, at, num), relevance.query] = True
    return hits[torch.searchsorted(ordered, item_rows)].T  # whole rows are gathered sooner than columns


def are_copies(item_rows: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
    """Return whether an earlier column is the same item."""
    order = torch.argsort(item_rows, stable=True)
    ordered = item_rows[order]
    is_copy = torch.zeros_like(item_rows, dtype=torch.bool)
    is_copy[order[1:]] = ordered[1:] == ordered[:-1]
    return is_copy
