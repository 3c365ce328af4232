"""Score every item, in blocks: the exact scan, and the answer that every other method is measured against.

The item's side (components and gate) is computed once per index. With `prune`, items whose largest cosine does not
reach the k-th best score so far, or the threshold, are passed over without a gate, which changes no answer.

    log_sum_exp(q) = log sum_x exp(logit(score(q, x), tau_q))

Source: RAILS, Section 3 (brute force); pEBR, Section 2.4: the denominator of the training loss, over the corpus.

Axes: B queries, X items.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.above import ScanAbove
from rails_ray.losses import ScoreLogit
from rails_ray.retrieval import Found, FoundAbove
from rails_ray.retrieval.certificate import all_scored, rounding_slack
from rails_ray.retrieval.checks import check_items, check_query, check_search, check_search_above
from rails_ray.similarities import Similarity
from rails_ray.similarities.states import ItemState, QueryState, take
from rails_ray.top_k import Exclusions, Scan

BLOCK_SCORES = 2**19  # scores of a block between two looks at the k-th best: 2 MB


class BruteForce:
    """Exact search with any similarity."""

    is_exact = True

    def __init__(self, similarity: Similarity, items: ItemState, *, prune: bool = True) -> None:
        check_items(similarity, items)
        self.similarity = similarity
        self.items = items
        self.prune = prune
        num_pairs, width = math.prod(similarity.num_components), items.components.shape[-1]
        self.slack = rounding_slack(num_pairs, width, items.components.dtype)

    def scores(self, query: QueryState) -> Float[Tensor, "B X"]:
        """The scores of all items; for evaluation, where a batch of queries is small."""
        return self.similarity.scores(query, self.items)

    def search(
        self,
        query: QueryState,
        k: int,
        exclude: Exclusions | None = None,
        floor: Float[Tensor, " B"] | None = None,
    ) -> Found:
        """The contract of `Retriever`.

        Args:
            floor: a score that k items are known to reach.
        """
        check_search(query, self.similarity, self.items, k)
        best = Scan(k, exclude)
        num_scored = self._fill(best, query, floor)
        return Found(best.top_k().exactly_k(), all_scored(len(query), query.components.device), num_scored)

    def search_above(
        self,
        query: QueryState,
        threshold: Float[Tensor, " B"],
        cap: int,
        exclude: Exclusions | None = None,
        at_least: int = 0,
        floor: Float[Tensor, " B"] | None = None,
    ) -> FoundAbove:
        """The contract of `Retriever`.

        Args:
            floor: a score that the answer is known to need no item below.
        """
        check_search_above(query, self.similarity, self.items, threshold, cap, at_least)
        found = ScanAbove(threshold, cap, at_least, exclude)
        num_scored = self._fill(found, query, floor)
        return FoundAbove(found.above(), all_scored(len(query), query.components.device), num_scored)

    def log_sum_exp(
        self, query: QueryState, logit: ScoreLogit, exclude: Exclusions | None = None
    ) -> Float[Tensor, " B"]:
        """Log of the sum over all items that are not excluded of exp(logit), added up in float64; the logsumexp of
        those of several shards is that of their corpus."""
        check_query(query, self.similarity, self.items)
        total = torch.full((len(query),), -torch.inf, dtype=torch.float64, device=query.components.device)
        for first, items in self._blocks(len(query)):
            logits = logit(self.similarity.scores(query, items), query.temperature).double()
            if exclude is not None:
                logits = exclude.mask(logits, first)
            total = torch.logaddexp(total, logits.logsumexp(dim=1))
        return total

    def _fill(self, found: Scan | ScanAbove, query: QueryState, floor: Float[Tensor, " B"] | None) -> Int[Tensor, " B"]:
        """Bring all items before `found`; how many of them were scored."""
        num_scored = torch.zeros(len(query), dtype=torch.int64, device=query.components.device)
        for first, items in self._blocks(len(query)):
            scores = self.similarity.scores(query, items, self._least(floor, found))
            num_scored += (scores > -torch.inf).sum(dim=1)
            found.add(first, scores)
        return num_scored

    def _blocks(self, num_queries: int) -> Iterator[tuple[int, ItemState]]:
        """(First row, items) of each block."""
        size = max(BLOCK_SCORES // max(num_queries, 1), 1)
        for first in range(0, len(self.items), size):
            yield first, take(self.items, slice(first, first + size))

    def _least(self, floor: Float[Tensor, " B"] | None, found: Scan | ScanAbove) -> Float[Tensor, " B"] | None:
        """What a largest cosine must reach for its item to be scored."""
        reached = found.floor if self.prune else None
        if floor is not None:
            reached = floor if reached is None else torch.maximum(floor, reached)
        return None if reached is None else reached - self.slack
