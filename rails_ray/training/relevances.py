"""One training step of relevance-based embeddings, on some queries and all items, and how many of the best they find.

    L = mean_q L_q          `modules.losses.distilled`, or RBE's own `modules.losses.top_share`

Source: RBE, Appendix C; HitRate, Section 4.1.

Axes: B queries, X items, S supports, F query features, K best items.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.kernels.top_k import select
from rails_ray.reranking.embedding import RelevanceEmbedding
from rails_ray.reranking.scored import SupportScores


@dataclass(frozen=True)
class RelevanceBatch:
    """
    queries: features of the queries.
    relevance: R(I, q); NaN for a hole.
    """

    queries: SupportScores
    relevance: Float[Tensor, "B X"]

    def to(self, device: torch.device | str) -> "RelevanceBatch":
        return RelevanceBatch(self.queries.to(device), self.relevance.to(device))


@dataclass(frozen=True)
class RelevanceSampler:
    """The contract of `Sampler`: queries in a new order each epoch, drawn from the seed and the step's number.

    every: all training queries.
    """

    every: RelevanceBatch
    batch_size: int
    seed: int

    def batch(self, step: int) -> RelevanceBatch:
        num_queries = len(self.every.queries)
        size = min(self.batch_size, num_queries)
        epoch, place = divmod(step, num_queries // size)
        order = np.random.default_rng([self.seed, epoch]).permutation(num_queries)
        rows = torch.from_numpy(order[place * size : (place + 1) * size])
        return RelevanceBatch(self.every.queries.take(rows), self.every.relevance[rows])


QueryLoss = Callable[[Tensor, Tensor], Tensor]


class RelevanceStep(nn.Module):
    """Loss of an embedding on a batch.

    Args:
        combinations: t of the training items.
        loss: of each query, from estimates and relevances in units of sigma [B, X].
        num_best: K.
    """

    combinations: Tensor

    def __init__(
        self, embedding: RelevanceEmbedding, combinations: Float[Tensor, "X S"], loss: QueryLoss, num_best: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.register_buffer("combinations", combinations, persistent=False)
        self.loss = loss
        self.num_best = num_best

    def forward(self, batch: RelevanceBatch) -> Float[Tensor, ""]:
        return self.loss(self.estimated(batch.queries), batch.relevance / self.embedding.sigma).mean()

    def estimated(self, queries: SupportScores) -> Float[Tensor, "B X"]:
        """The ranker's scores divided by sigma, as the embedding has them."""
        return self.embedding.queries(queries.scores, queries.features) @ self.embedding.items(self.combinations).T

    @torch.no_grad()
    def hit_rate(self, held_out: RelevanceBatch, num_found: int) -> float:
        """`found_of_best` on queries that were held out."""
        there = held_out.to(self.combinations.device)
        return float(found_of_best(self.estimated(there.queries), there.relevance, self.num_best, num_found).mean())


def found_of_best(
    estimated: Float[Tensor, "B X"], relevance: Float[Tensor, "B X"], num_best: int, num_found: int
) -> Float[Tensor, " B"]:
    """HitRate(P, K): the share of a query's K best items that are among the P of the highest estimates.

    Args:
        relevance: R; an item whose score is missing is neither among the best nor among the found.
        num_best, num_found: K and P; fewer if there are fewer items.
    """
    is_known = ~relevance.isnan()
    least = relevance.shape[1]
    best = select(relevance.masked_fill(~is_known, -torch.inf), min(num_best, least))
    found = select(estimated.masked_fill(~is_known, -torch.inf), min(num_found, least)).item_rows
    is_found = torch.zeros_like(is_known).scatter(1, found, True).gather(1, best.item_rows)
    is_there = best.scores > -torch.inf
    return (is_found & is_there).sum(dim=1) / is_there.sum(dim=1)
