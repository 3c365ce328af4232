"""GLaS, graph Laplacian and spread-out: items that answer the same queries shall be near each other, all others apart.

    l = mean_{i, j} (<v_i, v_j> - t_ij)^2,    t = 1/2 (C Z^-1 + Z^-1 C),    (C Z^-1)_ij = p(i | j)

C_ij counts the queries that both i and j answer, Z is the diagonal of C.

Source: SOLAR, Appendix D, Equation 2, from Guo et al., Breaking the Glass Ceiling for Embedding-Based Classifiers.
Differs from the source: the mean over pairs where Equation 2 has the sum, so that a weight means the same whatever the
size of a batch. The diagonal counts among the pairs. For an item that answers no query p(i | j) is undefined: such an
item shall be apart from all but itself.

Axes: N items of a batch, M relevant pairs of all queries.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.modules.losses.negatives import BatchRelevance


def glas(vectors: Float[Tensor, "N d"], targets: Float[Tensor, "N N"]) -> Float[Tensor, ""]:
    """The mean over all pairs of items, at least 0.

    Args:
        vectors: item embeddings of length 1.
        targets: t, from `CoOccurrence.targets`.
    """
    return (vectors @ vectors.T - targets).square().mean()


class CoOccurrence:
    """How often items answer the same query."""

    def __init__(self, relevance: BatchRelevance, num_items: int) -> None:
        """Args:
        relevance: the relevant pairs of all training queries; a repeated pair counts once.
        """
        from scipy import sparse  # which nothing but training needs, while configs name losses

        pairs = np.unique(torch.stack(relevance).numpy(force=True), axis=1)
        num_queries = int(pairs[0].max(initial=-1)) + 1
        ones = np.ones(pairs.shape[1], np.float32)
        answers = sparse.csr_array((ones, (pairs[0], pairs[1])), shape=(num_queries, num_items))
        self.counts = answers.T @ answers  # C
        self.occurrences = self.counts.diagonal()  # Z

    def targets(self, item_rows: Int[Tensor, " N"]) -> Float[Tensor, "N N"]:
        """t of these items, repeats allowed: in [0, 1], and 1 on the diagonal."""
        rows = item_rows.numpy(force=True)
        given = self.counts[rows][:, rows].toarray() / np.maximum(self.occurrences[rows], 1)  # p(i | j)
        given[rows[:, None] == rows] = 1  # also where an item never occurs
        return torch.from_numpy((given + given.T) / 2)
