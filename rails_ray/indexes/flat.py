"""All vectors, scanned in blocks: exact inner-product search.

Plain torch rather than `faiss.IndexFlatIP`, which it equals: faiss excludes the same items for all queries of a call,
and the mathematics must also run where only torch is installed.

Axes: B queries, X items, d width of a vector.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.above import Above, ScanAbove, check_above
from rails_ray.top_k import Exclusions, TopK, check_k, scan

BLOCK_SCORES = 2**23  # scores of a block, 32 MB: wide lines, in which selection costs least per score


class FlatIndex:
    """Exact inner-product search over `vectors` [X, d], which may be of a narrower dtype than queries."""

    is_exact = True

    def __init__(self, vectors: Float[Tensor, "X d"]) -> None:
        self.vectors = vectors

    def search(self, queries: Float[Tensor, "B d"], k: int, exclude: Exclusions | None = None) -> TopK:
        """The contract of `Index`.

        Raises:
            ValueError: unless 1 <= k <= X.
        """
        check_k(k, len(self.vectors))
        return scan(self._blocks(queries), k, exclude)

    def search_above(
        self,
        queries: Float[Tensor, "B d"],
        threshold: Float[Tensor, " B"],
        cap: int,
        exclude: Exclusions | None = None,
        at_least: int = 0,
    ) -> Above:
        """The contract of `Index`."""
        check_above(len(queries), threshold, cap, at_least)
        found = ScanAbove(threshold, cap, at_least, exclude)
        for first_row, scores in self._blocks(queries):
            found.add(first_row, scores)
        return found.above()

    def _blocks(self, queries: Float[Tensor, "B d"]) -> Iterator[tuple[int, Float[Tensor, "B _"]]]:
        """(First item row, scores) of each block; the scores last until the next one is asked for."""
        num_items = len(self.vectors)
        size = max(min(BLOCK_SCORES // max(len(queries), 1), num_items), 1)
        memory = queries.new_empty(len(queries) * size)  # of all blocks: to ask for it anew takes as long as a product
        for first in range(0, num_items, size):
            vectors = self.vectors[first : first + size].to(queries.dtype)
            scores = memory[: len(queries) * len(vectors)].view(len(queries), len(vectors))
            yield first, torch.mm(queries, vectors.T, out=scores)
