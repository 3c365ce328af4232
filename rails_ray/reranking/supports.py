"""Support selection: which items every query is scored against.

Each member takes R(I, S_Q), the relevance of all items to the support queries, and gives the rows of S_I, each once.

Source: RBE, Section 3.4 and Table 1.
Differs from the source: the authors' helper for popular items sorts ascending; here the highest mean comes first.

Axes: X items, Q support queries, S supports.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.reranking.clusters import near_centres
from rails_ray.reranking.l2_greedy import l2_greedy


@runtime_checkable
class Selection(Protocol):
    """One way to choose supports."""

    def rows(self, relevance: Float[Tensor, "X Q"], num_supports: int, generator: torch.Generator) -> Int[Tensor, " S"]:
        """Item rows in the order in which they were chosen, each once. `select_supports` has checked the arguments."""


@dataclass(frozen=True, kw_only=True)
class RandomSupports:
    """Items drawn at random, as AnnCUR has them."""

    kind: Literal["random"] = "random"

    def rows(self, relevance: Float[Tensor, "X Q"], num_supports: int, generator: torch.Generator) -> Int[Tensor, " S"]:
        """The contract of `Selection`."""
        return torch.randperm(len(relevance), generator=generator)[:num_supports]


@dataclass(frozen=True, kw_only=True)
class FirstSupports:
    """The first items of the corpus."""

    kind: Literal["first"] = "first"

    def rows(self, relevance: Float[Tensor, "X Q"], num_supports: int, generator: torch.Generator) -> Int[Tensor, " S"]:
        """The contract of `Selection`."""
        return torch.arange(num_supports)


@dataclass(frozen=True, kw_only=True)
class PopularSupports:
    """The items of the highest mean relevance."""

    kind: Literal["popular"] = "popular"

    def rows(self, relevance: Float[Tensor, "X Q"], num_supports: int, generator: torch.Generator) -> Int[Tensor, " S"]:
        """The contract of `Selection`."""
        return relevance.mean(dim=1).argsort(descending=True, stable=True)[:num_supports].cpu()


@dataclass(frozen=True, kw_only=True)
class MostDiverseSupports:
    """First the item furthest from the centre, then each time the one whose nearest support is furthest away."""

    kind: Literal["most_diverse"] = "most_diverse"

    def rows(self, relevance: Float[Tensor, "X Q"], num_supports: int, generator: torch.Generator) -> Int[Tensor, " S"]:
        """The contract of `Selection`."""
        row = int((relevance - relevance.mean(dim=0)).square().sum(dim=1).argmax())
        chosen, nearest = [row], relevance.new_full((len(relevance),), torch.inf)
        for _ in range(num_supports - 1):
            nearest = nearest.minimum((relevance - relevance[row]).square().sum(dim=1))
            nearest[row] = -torch.inf
            row = int(nearest.argmax())
            chosen.append(row)
        return torch.tensor(chosen)


@dataclass(frozen=True, kw_only=True)
class ClusterSupports:
    """One item near the centre of each of as many clusters, by scikit-learn with its own defaults.

    Args:
        method: which clusters.
    """

    kind: Literal["clusters"] = "clusters"
    method: Literal[
        "k_means",
        "mini_batch_k_means",
        "bisecting_k_means",
        "agglomerative",
        "spectral_coclustering",
        "spectral_biclustering",
        "spectral_nearest_neighbors",
    ] = "k_means"

    def rows(self, relevance: Float[Tensor, "X Q"], num_supports: int, generator: torch.Generator) -> Int[Tensor, " S"]:
        """The contract of `Selection`."""
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        return torch.from_numpy(near_centres(relevance.numpy(force=True), num_supports, self.method, seed))


@dataclass(frozen=True, kw_only=True)
class L2GreedySupports:
    """Each time the item that leaves the least squared error of all items, given the supports before it.

    Args:
        dtype: of the arithmetic. Single precision takes half the time and chooses nearly the same items.
    """

    kind: Literal["l2_greedy"] = "l2_greedy"
    dtype: Literal["float64", "float32"] = "float64"

    def rows(self, relevance: Float[Tensor, "X Q"], num_supports: int, generator: torch.Generator) -> Int[Tensor, " S"]:
        """The contract of `Selection`."""
        return l2_greedy(relevance.to(getattr(torch, self.dtype)), num_supports)


SupportsConfig = (
    RandomSupports | FirstSupports | PopularSupports | MostDiverseSupports | ClusterSupports | L2GreedySupports
)


def select_supports(
    selection: Selection,
    relevance: Float[Tensor, "X Q"],
    num_supports: int,
    *,
    seed: int,
    num_candidates: int | None = None,
) -> Int[Tensor, " S"]:
    """Rows of the supports, on the CPU, each once. Equal for equal seeds.

    Args:
        relevance: R(I, S_Q), without holes. Its device does the work.
        num_candidates: so many items drawn at random are looked at in place of all (RBE, Appendix E).

    Raises:
        ValueError: for more supports than items to choose from, fewer than 1, or a relevance that is not finite.
    """
    num_items = len(relevance)
    if num_candidates is not None and not num_supports <= num_candidates <= num_items:
        raise ValueError(
            f"candidates for supports must number {num_supports} (the supports) to {num_items} (the items),"
            f" got {num_candidates}"
        )
    if not 1 <= num_supports <= num_items:
        raise ValueError(f"supports must number 1 to {num_items} (the items), got {num_supports}")
    if num_holes := int((~relevance.isfinite()).sum()):
        raise ValueError(
            f"support selection needs every relevance, got a matrix with {num_holes} that are missing or not finite:"
            " fill them, or leave out those items or queries"
        )
    generator = torch.Generator().manual_seed(seed)
    if num_candidates is None:
        return selection.rows(relevance, num_supports, generator)
    candidates = torch.randperm(num_items, generator=generator)[:num_candidates].sort().values
    return candidates[selection.rows(relevance[candidates.to(relevance.device)], num_supports, generator)]
