"""Score every item, in blocks: the exact scan, and the answer that every other method is measured against.

The item's side (components and gate) is computed once per index. With `prune`, items whose largest cosine does not
reach the k-th best score so far are passed over without a gate, which changes no answer.

Source: RAILS, Section 3 (brute force).

Axes: B queries, X items.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.retrieval import Found
from rails_ray.retrieval.certificate import all_scored, rounding_slack
from rails_ray.retrieval.checks import check_items, check_search
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
        num_scored = torch.zeros(len(query), dtype=torch.int64, device=query.components.device)
        size = max(BLOCK_SCORES // max(len(query), 1), 1)
        for first in range(0, len(self.items), size):
            scores = self.similarity.scores(
                query, take(self.items, slice(first, first + size)), self._least(floor, best)
            )
            num_scored += (scores > -torch.inf).sum(dim=1)
            best.add(first, scores)
        certificate = all_scored(len(query), query.components.device)
        return Found(best.top_k().exactly_k(), certificate, num_scored)

    def _least(self, floor: Float[Tensor, " B"] | None, best: Scan) -> Float[Tensor, " B"] | None:
        """What a largest cosine must reach for its item to be scored."""
        reached = best.floor if self.prune else None
        if floor is not None:
            reached = floor if reached is None else torch.maximum(floor, reached)
        return None if reached is None else reached - self.slack
