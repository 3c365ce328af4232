"""Mixtures of Logits that are a given matrix, without training: what Theorem 1 promises, and where its numbers lie.

Three constructions:

    decomposed    the proof's own: A = pi o B_1 + (1 - pi) o B_2, with B_1 = lambda_min C, B_2 = lambda_max C,
                  C = U_d V_d the first d terms of A = U V, lambda = A / C, and
                  pi = (lambda_max - lambda) / (lambda_max - lambda_min)
    remembered    any A as our similarity: two components of width 2, and w, which remembers n * m gates
    of_relevance  A of zeros and r ones a row: two components of width 2 r + 3, and w with one hidden unit

Source: RAILS, Theorem 1 and the proof of its Lemma 2. `of_relevance` is ours, on the known fact that the signs of a
matrix with r positive entries a row need rank 2 r + 1 at most (Alon, Frankl and Roedl, 1985).
Differs from the source: the proof takes pi as any matrix of n * m numbers. Our gates are softmax(silu(u * v + w(l))):
what u and v, P numbers of a query and of an item, cannot say must lie in w, and gates of 0 and 1 are limits. Our
components are of length 1, so that scores are A over a scale. Where C is 0 and A is not, the printed proof misses A by
all of it (for A = I, U = V = I nearly everywhere): no gate moves B_1 = B_2 = 0. Another U mends it (`turned_terms`).

Axes: n queries, m items, d width of a component, r ones a row.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState

DTYPE = torch.float64
MOST_CERTAIN = 30.0  # a gate is at most sigmoid of it: 1e-13 from 0 and 1
STEEP = 40.0  # silu(x) is max(x, 0) in float64 from |x| = 40 on
ADDRESSES = (0.1, 0.6)  # angles that tell pairs apart; cosines of .995 to .825, far from 0 and from flat


@dataclass(frozen=True)
class Constructed:
    """A similarity and its states: scale * score is the matrix.

    scale: by which scores in [-1, 1] are multiplied.
    """

    mixture: MixtureOfLogits
    query: QueryState
    items: ItemState
    scale: float

    @torch.no_grad()
    def matrix(self) -> Float[Tensor, "n m"]:
        scores: Tensor = self.mixture(self.query, self.items).scores
        return self.scale * scores

    @property
    def num_parameters(self) -> int:
        """All numbers of queries, items and w."""
        assert self.query.gate is not None
        assert self.items.gate is not None
        states = (self.query.components, self.query.gate, self.items.components, self.items.gate)
        return sum(tensor.numel() for tensor in (*states, *self.mixture.parameters()))


def best_of_rank(matrix: Float[Tensor, "n m"], rank: int) -> Float[Tensor, "n m"]:
    """The nearest matrix of a rank (Eckart and Young): no dot product of that width is nearer."""
    u, sizes, v = torch.linalg.svd(matrix, full_matrices=False)
    nearest: Tensor = (u[:, :rank] * sizes[:rank]) @ v[:rank]
    return nearest


def equal_width(num_parameters: int, num_queries: int, num_items: int) -> int:
    """The least width of a dot product that has at least as many numbers as something else."""
    return -(-num_parameters // (num_queries + num_items))


def turned_terms(matrix: Float[Tensor, "n m"], rank: int, generator: torch.Generator) -> Float[Tensor, "n m"]:
    """C: the first terms of A = (A R) R', with R a random rotation, so that C is 0 only where a row of A is."""
    rotation, _ = torch.linalg.qr(torch.randn(matrix.shape[1], matrix.shape[1], generator=generator, dtype=DTYPE))
    kept: Tensor = rotation[:, :rank]
    return (matrix @ kept) @ kept.T


def decomposed(
    matrix: Float[Tensor, "n m"], low: Float[Tensor, "n m"]
) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"], Float[Tensor, "n m"]]:
    """pi, B_1 and B_2 of the proof of Lemma 2.

    Args:
        low: C, d terms of the matrix. Where it is 0 the mixture is 0 too, whatever the gate.
    """
    ratios = torch.where(low == 0, 1.0, matrix / torch.where(low == 0, 1.0, low))  # lambda
    least, most = ratios.min(), ratios.max()
    gates = (most - ratios) / (most - least) if most > least else torch.ones_like(ratios)
    return gates, least * low, most * low


def remembered(matrix: Float[Tensor, "n m"]) -> Constructed:
    """Any matrix as a mixture of a cosine and its negative.

    Angles of queries and items are such that each pair has its own cosine, its address. w is a broken line through the
    gates of all addresses, one hidden unit each: 5 n m + 2 numbers, more than the matrix has.
    """
    num_queries, num_items = matrix.shape
    first, last = ADDRESSES
    step = (last - first) / (num_queries * num_items)
    f = _on_circle(-step * torch.arange(num_queries, dtype=DTYPE) - first)
    g = _on_circle(step * num_queries * torch.arange(num_items, dtype=DTYPE))
    cosines = f @ g.T
    scale = float((matrix / cosines).abs().max())
    odds = torch.logit((1 + matrix / (scale * cosines)) / 2).clamp(-MOST_CERTAIN, MOST_CERTAIN)
    mixture = MixtureOfLogits(_config(hidden=matrix.numel())).to(DTYPE)
    _remember(mixture, (cosines / mixture.temperature).flatten(), odds.flatten())
    return Constructed(mixture, _query(f), _items(torch.stack([g, -g], dim=1)), scale)


def of_relevance(relevant: Bool[Tensor, "n m"]) -> Constructed:
    """A matrix of zeros and r ones a row, as a cosine where it is at its highest, and 0 elsewhere.

    Raises:
        ValueError: if rows have different numbers of ones.
    """
    f, g = separating(relevant)
    level = float((f @ g.T)[relevant].min())
    margin = level - float((f @ g.T)[~relevant].max())
    aside = torch.zeros_like(g)
    aside[:, -1] = 1.0  # the direction in which queries are 0
    mixture = MixtureOfLogits(_config(hidden=1)).to(DTYPE)
    slope = 2 * MOST_CERTAIN * mixture.temperature / margin * 2
    middle = slope * (level - margin / 2) / mixture.temperature
    weights = ([[slope, 0.0]], [-middle], [[1.0], [0.0]], [0.0, MOST_CERTAIN])
    _, first, _, second = mixture.logit_gate
    for parameter, values in zip((*first.parameters(), *second.parameters()), weights, strict=True):
        parameter.data = torch.tensor(values, dtype=DTYPE)
    return Constructed(mixture, _query(f), _items(torch.stack([g, aside], dim=1)), 1 / level)


def separating(relevant: Bool[Tensor, "n m"]) -> tuple[Float[Tensor, "n d"], Float[Tensor, "m d"]]:
    """Vectors of length 1 whose cosine is one level for all relevant pairs and lower for all others; d = 2 r + 3.

    Items stand on a circle, at angles t_j. A query is the trigonometric polynomial 1 - c prod_k (1 - cos(t - t_k)) over
    its r relevant items k, of degree r: 1 there, lower elsewhere. The last two directions make lengths and levels one.

    Raises:
        ValueError: if rows have different numbers of ones.
    """
    num_items, counts = relevant.shape[1], relevant.sum(dim=1)
    degree = int(counts[0])
    if not bool((counts == degree).all()):
        raise ValueError(f"rows must have as many ones each, got {int(counts.min())} to {int(counts.max())}")
    angles = 2 * torch.pi * torch.arange(num_items, dtype=DTYPE) / num_items
    waves = angles[:, None] * torch.arange(1, degree + 1, dtype=DTYPE)
    curve = torch.cat([torch.ones(num_items, 1, dtype=DTYPE), waves.cos(), waves.sin()], dim=1)  # [m, 2 r + 1]
    own = angles.expand(relevant.shape)[relevant].view(-1, degree)  # t_k, [n, r]
    below = (1 - (angles[None, :, None] - own[:, None, :]).cos()).prod(dim=2)  # [n, m]
    values = 1 - below / below.max(dim=1, keepdim=True).values
    f = torch.linalg.lstsq(curve, values.T).solution.T
    f = f / f.norm(dim=1).max()  # a common scale keeps all levels equal
    rest = (1 - f.square().sum(dim=1, keepdim=True)).clamp(min=0).sqrt()
    g = curve / curve.norm(dim=1, keepdim=True)  # all of the same length, so that levels stay equal
    nothing = torch.zeros(num_items, 2, dtype=DTYPE)
    return torch.cat([f, rest, torch.zeros_like(rest)], dim=1), torch.cat([g, nothing], dim=1)


def _remember(mixture: MixtureOfLogits, addresses: Float[Tensor, " N"], odds: Float[Tensor, " N"]) -> None:
    """Set w such that the gates of a pair with this first logit are sigmoid(odds) and sigmoid(-odds)."""
    at, order = addresses.sort()
    z = torch.stack([_inverse_silu(odds.clamp(min=0)), _inverse_silu((-odds).clamp(min=0))])[:, order]  # [2, N]
    slopes = z.diff(dim=1) / at.diff()
    bends = torch.cat([slopes[:, :1], slopes.diff(dim=1), torch.zeros(2, 1, dtype=DTYPE)], dim=1)
    steepness = STEEP / at.diff().min()
    _, first, _, second = mixture.logit_gate
    first.weight.data = torch.stack([steepness.expand_as(at), torch.zeros_like(at)], dim=1)
    first.bias.data = -steepness * at
    second.weight.data = bends / steepness
    second.bias.data = z[:, 0].clone()


def _inverse_silu(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """x >= 0 with x * sigmoid(x) = value >= 0, by Newton's method."""
    x = values + 0.5
    for _ in range(40):
        sigmoid = torch.sigmoid(x)
        x = x - (x * sigmoid - values) / (sigmoid * (1 + x * (1 - sigmoid)))
    return x


def _config(hidden: int) -> MixtureOfLogitsConfig:
    return MixtureOfLogitsConfig(
        num_query_components=1, num_item_components=2, gate_hidden=hidden, logit_dropout=0.0, gate_dropout=0.0
    )


def _on_circle(angles: Float[Tensor, " N"]) -> Float[Tensor, "N 2"]:
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def _query(f: Float[Tensor, "n d"]) -> QueryState:
    return QueryState(f[:, None], torch.zeros(len(f), 2, dtype=DTYPE), torch.ones(len(f), dtype=DTYPE))


def _items(g: Float[Tensor, "m 2 d"]) -> ItemState:
    return ItemState(g, torch.zeros(len(g), 2, dtype=DTYPE), None)
