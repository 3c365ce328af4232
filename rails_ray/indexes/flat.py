"""All vectors, scanned in blocks: exact inner-product search.

Plain torch rather than `faiss.IndexFlatIP`, which it equals: faiss excludes the same items for all queries of a call,
and the mathematics must also run where only torch is installed.

Axes: B queries, X items, d width of a vector.
"""

import torch
from jaxtyping import Float
from torch import Tensor

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
        num_items = len(self.vectors)
        check_k(k, num_items)
        size = min(max(BLOCK_SCORES // max(len(queries), 1), 1), num_items)
        memory = queries.new_empty(len(queries) * size)  # of all blocks: to ask for it anew takes as long as a product

        def block(first: int) -> Float[Tensor, "B x"]:
            vectors = self.vectors[first : first + size].to(queries.dtype)
            scores = memory[: len(queries) * len(vectors)].view(len(queries), len(vectors))
            return torch.mm(queries, vectors.T, out=scores)

        return scan(((first, block(first)) for first in range(0, num_items, size)), k, exclude)
