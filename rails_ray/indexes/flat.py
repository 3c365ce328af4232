"""All vectors, scanned in blocks: exact inner-product search.

Plain torch rather than `faiss.IndexFlatIP`, which it equals: faiss excludes the same items for all queries of a call,
and the mathematics must also run where only torch is installed.

Axes: B queries, X items, d width of a vector.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.scan import scan
from rails_ray.wanted import Found, Wanted

BLOCK_SCORES = 2**23  # scores of a block, 32 MB: wide lines, in which selection costs least per score


class FlatIndex:
    """Exact inner-product search over `vectors` [X, d], which may be of a narrower dtype than queries."""

    is_exact = True

    def __init__(self, vectors: Float[Tensor, "X d"]) -> None:
        self.vectors = vectors

    def search(self, queries: Float[Tensor, "B d"], wanted: Wanted) -> Found:
        """The contract of `Index`."""
        wanted.check_queries(len(queries))
        return scan(self._blocks(queries), wanted, len(queries), len(self.vectors), queries.device)

    def _blocks(self, queries: Float[Tensor, "B d"]) -> Iterator[tuple[int, Float[Tensor, "B _"]]]:
        """(First item row, scores) of each block; the scores last until the next one is asked for."""
        num_items = len(self.vectors)
        size = max(min(BLOCK_SCORES // max(len(queries), 1), num_items), 1)
        memory = queries.new_empty(len(queries) * size)  # for all blocks: asking for it anew takes as long as a product
        for first in range(0, num_items, size):
            vectors = self.vectors[first : first + size].to(queries.dtype)
            scores = memory[: len(queries) * len(vectors)].view(len(queries), len(vectors))
            yield first, torch.mm(queries, vectors.T, out=scores)
