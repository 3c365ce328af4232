"""Score every item, in blocks: the answer that every other method is measured against.

The item's side (components and gate) is computed once per index, so a block costs one product of components and the
gate's small network; [B, X, P] is never held.

Source: RAILS, Section 3 (brute force).

Axes: B queries, X items, P pairs of components.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.similarities import Similarity
from rails_ray.similarities.states import ItemState, QueryState, take
from rails_ray.top_k import Exclusions, TopK, check_k, scan

BLOCK_PAIRS = 2**19  # B * x * P of a block: 2 MB of component logits, which stay in the cache through the gate


class BruteForce:
    """Exact search with any similarity."""

    is_exact = True

    def __init__(self, similarity: Similarity, items: ItemState) -> None:
        self.similarity = similarity
        self.items = items

    def blocks(self, query: QueryState) -> Iterator[tuple[int, Float[Tensor, "B _"]]]:
        """(first item row, scores) of consecutive blocks of items."""
        num_query_components, num_item_components = self.similarity.num_components
        pairs_per_item = max(len(query), 1) * num_query_components * num_item_components
        size = max(BLOCK_PAIRS // pairs_per_item, 1)
        for first in range(0, len(self.items), size):
            block = take(self.items, slice(first, first + size))
            yield first, self.similarity(query, block).scores

    def scores(self, query: QueryState) -> Float[Tensor, "B X"]:
        """The scores of all items; for evaluation, where a batch of queries is small."""
        with torch.no_grad():
            return torch.cat([scores for _, scores in self.blocks(query)], dim=1)

    def search(self, query: QueryState, k: int, exclude: Exclusions | None = None) -> TopK:
        """The contract of `Retriever`."""
        check_k(k, len(self.items))
        with torch.no_grad():
            return scan(self.blocks(query), k, exclude).exactly_k()
