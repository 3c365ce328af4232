"""Candidates by the average component, then their scores: two steps, the first an inner-product search.

    candidates(q) = the num_candidates items with the largest <mean_pq f_pq(q), mean_px g_px(x)>

The inner product of the means is the mean of all P cosines, which is the score under equal gates.

Source: RAILS, Section 3.3 (top-k average).
Differs from the source: means where the paper sums, so that first-stage scores lie in [-1, 1] too; the order is equal.

Axes: B queries, X items, C candidates.
"""

import math

import torch

from rails_ray.indexes.flat import FlatIndex
from rails_ray.similarities import Similarity
from rails_ray.similarities.states import ItemState, QueryState, take
from rails_ray.top_k import Exclusions, TopK, check_k, select

BLOCK_PAIRS = 2**20  # queries * candidates * P of a block: what is gathered for it stays within some 100 MB


class Average:
    """Search by the average component, widened to `num_candidates` items (at least k of them), and rescored."""

    def __init__(self, similarity: Similarity, items: ItemState, num_candidates: int) -> None:
        if num_candidates < 1:
            raise ValueError(f"num_candidates must be at least 1, got {num_candidates}")
        self.similarity = similarity
        self.items = items
        self.num_candidates = num_candidates
        self.index = FlatIndex(items.average)

    @property
    def is_exact(self) -> bool:
        """With one component on each side, the average is the score itself."""
        return self.similarity.num_components == (1, 1)

    def search(self, query: QueryState, k: int, exclude: Exclusions | None = None) -> TopK:
        """The contract of `Retriever`."""
        check_k(k, len(self.items))
        with torch.no_grad():
            num_candidates = min(max(self.num_candidates, k), len(self.items))
            num_pairs = num_candidates * math.prod(self.similarity.num_components)
            size = max(BLOCK_PAIRS // num_pairs, 1)
            found = self.index.search(query.average, num_candidates, exclude)
            parts = [self._rescore(query, found, first, first + size, k) for first in range(0, len(query), size)]
            scores = torch.cat([part.scores for part in parts]) if parts else found.scores[:, :k]
            rows = torch.cat([part.item_rows for part in parts]) if parts else found.item_rows[:, :k]
            return TopK(scores, rows).exactly_k()

    def _rescore(self, query: QueryState, found: TopK, first: int, end: int, k: int) -> TopK:
        """The k best candidates of queries first .. end - 1."""
        rows = found.item_rows[first:end]
        block = take(query, slice(first, end))
        scores = self.similarity(block, take(self.items, rows)).scores  # [B, C]
        # Where exclusion leaves fewer items than candidates, excluded ones fill the last places.
        return select(scores.masked_fill(found.scores[first:end] == -torch.inf, -torch.inf), k, rows)
