"""Surrogate: one vector for a query and one for an item, whose inner product stands for the score of any similarity.

    score(q, x) ~ <psi(q), w_x>
    psi(q) = (map of phi(q), 1)
    w_x    = R(x, S_Q) Psi^T / |S_Q| (Psi Psi^T / |S_Q| + lambda)^-1,      Psi = psi of the queries S_Q

so that any index of inner products over w_x finds candidates. phi(q) is what the query is encoded as, all components
and the gate's input, or the scores of a few items, the supports. The map is linear, or a network that was trained on
the scores of a sample of items. w_x needs the item's scores for S_Q alone: a new item joins without another fit.

Source: AnnCUR's equation (RBE, Equation 1) for w_x, with psi in the place of the supports' scores; LEMUR (learned
multi-vector retrieval) for a network whose last layer is thrown away. The linear map is reduced-rank regression: the
ridge fit of the sample's scores to phi, projected on its first principal directions.

Axes: B queries, S sampled queries S_Q, X items, N sampled items, F numbers of phi, H hidden, W width of the map,
D = W + 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.states import ItemState, QueryState, take
from rails_ray.reranking.anncur import AnnCur
from rails_ray.reranking.rounding import deviations
from rails_ray.reranking.supports import L2GreedySupports, select_supports

HIDDEN = 256  # of the network
NUM_STEPS, BATCH, RATE = 1500, 128, 1e-3  # of its training
HELD_OUT = 10  # one query in so many chooses when to stop
LOOK_EVERY, PATIENCE = 50, 5  # steps between two looks at these queries, and looks without a gain
SCORES_AT_ONCE = 2**19  # of sampled queries and items


@dataclass(frozen=True, kw_only=True)
class SurrogateConfig:
    """Vectors that find candidates for a similarity, stored beside an item's components.

    Args:
        kind: `none`; `ridge` for a linear map of queries, `mlp` for a network.
        reads: phi(q): `query` for what the query is encoded as, `supports` for the scores of some items.
        width: numbers of the map, W; a linear map has no more than phi has, or than there are queries or items.
        num_supports: items that `supports` scores for every query, chosen by l2-greedy.
        num_queries: training queries that every item is scored against, S; all, if there are fewer.
        num_items: items whose scores the map is fitted to, N; all, if there are fewer.
        ridge: lambda, as a share of the mean square of psi, above 0.
    """

    kind: Literal["none", "ridge", "mlp"] = "none"
    reads: Literal["query", "supports"] = "query"
    width: int = 63
    num_supports: int = 100
    num_queries: int = 1000
    num_items: int = 2048
    ridge: float = 0.001

    def __post_init__(self) -> None:
        for name in ("width", "num_supports", "num_queries", "num_items"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.ridge < float("inf"):
            raise ValueError(f"ridge must be a finite number above 0, got {self.ridge}")
        if self.reads == "supports" and self.num_supports > self.num_items:
            raise ValueError(
                f"num_supports must be at most num_items, {self.num_items}, which they are chosen from, got "
                f"{self.num_supports}"
            )


@dataclass(frozen=True)
class Surrogate:
    """A fitted map of queries, and what makes an item's vector of its scores.

    sample: S_Q, encoded.
    inverse: w_x = R(x, S_Q) inverse.
    supports: the items whose scores phi holds; None if phi is the query itself.
    mean, deviation: of phi, over S_Q.
    weights, biases: of the map's layers; an exponential linear unit stands between two.
    """

    sample: QueryState
    inverse: Float[Tensor, "S D"]
    supports: ItemState | None
    mean: Float[Tensor, " F"]
    deviation: Float[Tensor, " F"]
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]

    @property
    def width(self) -> int:
        """D."""
        return self.inverse.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        found = {name: getattr(self, name) for name in ("inverse", "mean", "deviation")}
        found |= {f"weight.{number}": weight for number, weight in enumerate(self.weights)}
        found |= {f"bias.{number}": bias for number, bias in enumerate(self.biases)}
        found |= {f"sample.{name}": getattr(self.sample, name) for name in ("components", "gate", "temperature")}
        if self.supports is not None:
            found |= {f"supports.{name}": getattr(self.supports, name) for name in ("components", "gate")}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> "Surrogate":
        """The surrogate that has these tensors.

        Raises:
            KeyError: if one is missing.
        """
        num_layers = sum(name.startswith("weight.") for name in tensors)
        supports = None
        if "supports.components" in tensors:
            supports = ItemState(tensors["supports.components"], tensors.get("supports.gate"), None)
        return Surrogate(
            QueryState(tensors["sample.components"], tensors.get("sample.gate"), tensors["sample.temperature"]),
            tensors["inverse"],
            supports,
            tensors["mean"],
            tensors["deviation"],
            tuple(tensors[f"weight.{number}"] for number in range(num_layers)),
            tuple(tensors[f"bias.{number}"] for number in range(num_layers)),
        )

    def to(self, device: torch.device | str) -> "Surrogate":
        """Move to another device."""
        return Surrogate.of({name: tensor.to(device) for name, tensor in self.tensors().items()})

    def queries(self, similarity: Scorer, query: QueryState) -> Float[Tensor, "B D"]:
        """psi(q)."""
        rows = (_phi(similarity, query, self.supports) - self.mean) / self.deviation
        return _psi(_mapped(rows, self.weights, self.biases))

    def items(self, similarity: Scorer, items: ItemState) -> Float[Tensor, "X D"]:
        """w_x, by the scores of all sampled queries."""
        return scores_of_all(similarity, self.sample, items).T @ self.inverse


@dataclass(frozen=True)
class WithSurrogate:
    """A similarity of components, and the surrogate that finds candidates for it."""

    similarity: Any
    surrogate: Surrogate

    @property
    def num_components(self) -> tuple[int, int]:
        """(P_Q, P_X)."""
        found: tuple[int, int] = self.similarity.num_components
        return found

    def prepared(self) -> "WithSurrogate":
        """Prepare all that depends on no query."""
        return WithSurrogate(self.similarity.prepared(), self.surrogate)

    def queries(self, query: QueryState) -> Float[Tensor, "B D"]:
        """psi(q)."""
        return self.surrogate.queries(self.similarity, query)

    def to(self, device: torch.device | str) -> "WithSurrogate":
        """Move to another device."""
        return WithSurrogate(self.similarity.to(device), self.surrogate.to(device))


def fit_surrogate(
    config: SurrogateConfig, similarity: Scorer, sample: QueryState, items: ItemState, seed: int
) -> Surrogate:
    """A surrogate of a similarity, for queries and items like these; equal arguments give an equal one.

    Args:
        sample: S_Q.
        items: N of them, supports among them.

    Raises:
        ValueError: if there are fewer items than supports, or fewer than two queries.
    """
    if len(sample) < 2:
        raise ValueError(f"a surrogate must be fitted to at least 2 training queries, got {len(sample)}")
    relevance = scores_of_all(similarity, sample, items).T  # [N, S]
    supports = None
    if config.reads == "supports":
        if config.num_supports > len(items):
            raise ValueError(f"num_supports must be at most the {len(items)} items, got {config.num_supports}")
        rows = select_supports(L2GreedySupports(dtype="float32"), relevance, config.num_supports, seed=seed)
        supports = replace(take(items, torch.as_tensor(rows)), average=None)
    phi = _phi(similarity, sample, supports)
    mean, deviation = phi.mean(dim=0), deviations(phi)
    rows = (phi - mean) / deviation
    if config.kind == "ridge":
        weights, biases = _linear(rows, relevance, config)
    else:
        weights, biases = _network(rows, relevance, config, seed)
    psi = _psi(_mapped(rows, weights, biases))
    return Surrogate(sample, _inverse(psi, config.ridge), supports, mean, deviation, weights, biases)


@torch.no_grad()
def scores_of_all(similarity: Scorer, query: QueryState, items: ItemState) -> Float[Tensor, "B X"]:
    """The score of every query and item, in blocks of items."""
    size = max(SCORES_AT_ONCE // max(len(query), 1), 1)
    starts, compared = range(0, max(len(items), 1), size), replace(items, average=None)
    blocks = (take(compared, slice(first, first + size)) for first in starts)
    return torch.cat([similarity.scores(query, block) for block in blocks], dim=1)


def _phi(similarity: Scorer, query: QueryState, supports: ItemState | None) -> Float[Tensor, "B F"]:
    if supports is not None:
        return scores_of_all(similarity, query, supports)
    components = query.components.flatten(start_dim=1)
    return components if query.gate is None else torch.cat([components, query.gate], dim=1)


def _psi(mapped: Float[Tensor, "B W"]) -> Float[Tensor, "B D"]:
    return torch.cat([mapped, mapped.new_ones(len(mapped), 1)], dim=1)


def _mapped(rows: Tensor, weights: tuple[Tensor, ...], biases: tuple[Tensor, ...]) -> Float[Tensor, "B W"]:
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        rows = F.linear(F.elu(rows) if number else rows, weight, bias)
    return rows


def _inverse(psi: Float[Tensor, "S D"], ridge: float) -> Float[Tensor, "S D"]:
    return AnnCur(psi.T, ridge * float(psi.square().mean())).inverse.float()


def _linear(
    rows: Float[Tensor, "S F"], relevance: Float[Tensor, "N S"], config: SurrogateConfig
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The first principal directions of what a ridge regression on phi says of the sampled items."""
    centred = (relevance - relevance.mean(dim=1, keepdim=True)).double()
    fitted = (centred @ _inverse(rows, config.ridge).double()).T  # [F, N]
    directions = torch.linalg.svd(rows.double() @ fitted, full_matrices=False).Vh
    directions = directions[: min(config.width, rows.shape[1])]
    weight = directions @ fitted.T  # [W, F]
    scale = (rows.double() @ weight.T).square().mean(dim=0).sqrt().clamp(min=1e-12)
    return ((weight / scale[:, None]).float(),), (rows.new_zeros(len(weight)),)


def _network(
    rows: Float[Tensor, "S F"], relevance: Float[Tensor, "N S"], config: SurrogateConfig, seed: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A network whose last layer, thrown away, gave the standardised scores of the sampled items."""
    centred = relevance - relevance.mean(dim=1, keepdim=True)
    wanted = (centred / centred.std().clamp(min=1e-12)).T  # [S, N]
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        order = torch.randperm(len(rows))
        num_held_out = max(len(rows) // HELD_OUT, 1)
        held_out, train = order[:num_held_out], order[num_held_out:]
        layers = nn.Sequential(
            nn.Linear(rows.shape[1], HIDDEN),
            nn.ELU(),
            nn.Linear(HIDDEN, config.width),
            nn.Linear(config.width, wanted.shape[1]),
        )
        optimizer = torch.optim.AdamW(layers.parameters(), lr=RATE, weight_decay=0.01)
        best, best_loss, looks = [part.detach().clone() for part in layers.parameters()], float("inf"), 0
        for step in range(NUM_STEPS):
            if step % LOOK_EVERY == 0:
                with torch.no_grad():
                    loss = float(F.mse_loss(layers(rows[held_out]), wanted[held_out]))
                looks += 1
                if loss < best_loss:
                    best, best_loss, looks = [part.detach().clone() for part in layers.parameters()], loss, 0
                if looks > PATIENCE:
                    break
            batch = train[torch.randint(len(train), (BATCH,))]
            optimizer.zero_grad()
            F.mse_loss(layers(rows[batch]), wanted[batch]).backward()
            optimizer.step()
    return (best[0], best[2]), (best[1], best[3])
