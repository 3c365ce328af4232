"""Matrices, and free embeddings fitted to them: a Mixture of Logits, and dot products of as many numbers.

Axes: n queries, m items, D width of a dot product.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState

NUM_BEST = 10  # best items of a query, where relevance is a score
NUM_RELEVANT = 4  # relevant items of a query, where it is one or none
LOW_RANK = 8
LEAST_VIEWS = 200  # of a movie, so that its counts are no noise
ENERGY = 0.99


@dataclass(frozen=True)
class Target:
    """What is to be fitted.

    best: the items that should come first for each query.
    """

    matrix: Float[Tensor, "n m"]
    best: Bool[Tensor, "n m"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a mixture: P_Q, P_X, d, and H."""

    num_query_components: int
    num_item_components: int
    width: int
    gate_hidden: int = 16

    @property
    def num_pairs(self) -> int:
        return self.num_query_components * self.num_item_components

    @property
    def numbers_per_item(self) -> int:
        """What an index stores of an item: its components, and its part of the gate."""
        return self.num_item_components * self.width + self.num_pairs

    def __str__(self) -> str:
        return f"{self.num_query_components} x {self.num_item_components} x {self.width}, H {self.gate_hidden}"


def random_target(kind: str, size: int, generator: torch.Generator) -> Target:
    """A target without a pattern, or with none but its rank.

    Args:
        kind: `uniform` in [-1, 1]; `low rank`; `permutation`; `relevance`.
    """
    if kind == "permutation":
        return _relevance(torch.eye(size, dtype=torch.bool)[torch.randperm(size, generator=generator)])
    matrix = torch.rand(size, size, generator=generator) * 2 - 1
    if kind == "relevance":
        return _relevance(_highest(matrix, NUM_RELEVANT))
    if kind == "low rank":
        matrix = matrix[:, :LOW_RANK] @ (torch.rand(LOW_RANK, size, generator=generator) * 2 - 1)
    return _scores(matrix)


def movie_target(kind: str, size: int, folder: Path, generator: torch.Generator) -> Target:
    """A target from MovieLens-1M, of some of its movies that at least 200 people saw.

    Args:
        kind: `ml-1m users`, who saw which movie; `ml-1m movies`, log p(j | i) / p(j) for those who saw i and j.
    """
    seen = _seen(folder)
    movies = torch.randperm(seen.shape[1], generator=generator)[:size].numpy()
    if kind == "ml-1m users":
        has_any = np.flatnonzero(seen[:, movies].any(axis=1))
        users = has_any[torch.randperm(len(has_any), generator=generator)[:size].numpy()]
        return _relevance(torch.from_numpy(seen[np.ix_(users, movies)]))
    some = seen[:, movies].astype(np.float64)
    together, shares = some.T @ some / len(some), some.mean(axis=0)
    lift = np.log((together + 1 / len(some)) / np.outer(shares, shares))
    np.fill_diagonal(lift, lift.min())  # a movie is not its own neighbour
    return _scores(torch.from_numpy(lift).float())


class FreeMixture(nn.Module):
    """A Mixture of Logits whose components and gate inputs are parameters, times a scale."""

    def __init__(self, target: Target, shape: Shape) -> None:
        super().__init__()
        n, m = target.matrix.shape
        config = MixtureOfLogitsConfig(
            num_query_components=shape.num_query_components,
            num_item_components=shape.num_item_components,
            gate_hidden=shape.gate_hidden,
            logit_dropout=0.0,
            gate_dropout=0.0,
        )
        self.similarity = MixtureOfLogits(config)
        self.f = nn.Parameter(torch.randn(n, shape.num_query_components, shape.width))
        self.g = nn.Parameter(torch.randn(m, shape.num_item_components, shape.width))
        self.u = nn.Parameter(torch.randn(n, shape.num_pairs))
        self.v = nn.Parameter(torch.randn(m, shape.num_pairs))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self) -> Float[Tensor, "n m"]:
        query = QueryState(F.normalize(self.f, dim=-1), self.u, torch.ones(len(self.f)))
        items = ItemState(F.normalize(self.g, dim=-1), self.v, None)
        return self.log_scale.exp() * self.similarity.training_scores(query, items)


class FreeDots(nn.Module):
    """Dot products of vectors of any length, which are parameters."""

    def __init__(self, target: Target, width: int) -> None:
        super().__init__()
        n, m = target.matrix.shape
        self.f = nn.Parameter(torch.randn(n, width) / width**0.25)
        self.g = nn.Parameter(torch.randn(m, width) / width**0.25)

    def forward(self) -> Float[Tensor, "n m"]:
        return self.f @ self.g.T


def squared(fitted: Float[Tensor, "n m"], target: Target) -> Float[Tensor, ""]:
    return (fitted - target.matrix).square().mean()


def softmax(fitted: Float[Tensor, "n m"], target: Target) -> Float[Tensor, ""]:
    """Cross entropy of a softmax with temperature .05 and the best items, each as good as the others."""
    shares = target.best / target.best.sum(dim=1, keepdim=True)
    return F.cross_entropy(fitted / 0.05, shares)


def fit(
    model: nn.Module, loss: Callable[[Tensor, Target], Tensor], target: Target, learning_rate: float, steps: int
) -> Float[Tensor, "n m"]:
    """What Adam makes of all entries at once, with a rate that falls to 0 by a cosine."""
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(), target).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        fitted: Tensor = model()
    return fitted


def measures(fitted: Float[Tensor, "n m"], target: Target) -> dict[str, float]:
    """How near a fitted matrix is, in value and in order.

    error: the norm of what is missed, as a share of the target's.
    rows_right: share of queries whose best items all come before all others.
    best_found: share of a query's best items that come first, as many as it has.
    rank: of the fitted matrix, as many singular values as hold 99% of the squares.
    """
    lowest_best = fitted.masked_fill(~target.best, torch.inf).amin(dim=1)
    highest_other = fitted.masked_fill(target.best, -torch.inf).amax(dim=1)
    places = fitted.argsort(dim=1, descending=True).argsort(dim=1)
    is_first = places < target.best.sum(dim=1, keepdim=True)
    found = (is_first & target.best).sum(dim=1) / target.best.sum(dim=1)
    return {
        "error": float((fitted - target.matrix).norm() / target.matrix.norm()),
        "rows_right": float((lowest_best > highest_other).float().mean()),
        "best_found": float(found.mean()),
        "rank": effective_rank(fitted),
    }


def effective_rank(matrix: Float[Tensor, "n m"]) -> int:
    """The number of singular values that hold 99% of the sum of their squares."""
    energy = torch.linalg.svdvals(matrix.double()).square()
    return int((energy.cumsum(0) < ENERGY * energy.sum()).sum()) + 1


def _seen(folder: Path) -> NDArray[np.bool_]:
    """Who saw which movie, of the movies that enough people saw."""
    table = pq.read_table(folder / "interactions.parquet", columns=["user_id", "item_id"])
    _, users = np.unique(table["user_id"].to_numpy(), return_inverse=True)
    _, movies = np.unique(table["item_id"].to_numpy(), return_inverse=True)
    seen = np.zeros((users.max() + 1, movies.max() + 1), dtype=np.bool_)
    seen[users, movies] = True
    return seen[:, seen.sum(axis=0) >= LEAST_VIEWS]


def _highest(matrix: Float[Tensor, "n m"], k: int) -> Bool[Tensor, "n m"]:
    return torch.zeros_like(matrix, dtype=torch.bool).scatter(1, matrix.topk(k, dim=1).indices, True)


def _relevance(best: Bool[Tensor, "n m"]) -> Target:
    return Target(best.float(), best)


def _scores(matrix: Float[Tensor, "n m"]) -> Target:
    return Target(matrix / matrix.abs().max(), _highest(matrix, NUM_BEST))
