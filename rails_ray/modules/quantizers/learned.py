"""Codebooks that gradients change: soft and hard codewords of a batch.

    P_m(l | x)  = softmax_l((<y_m, s_ml> + b_ml) / tau)          y = R x, selectors s and biases b as in `product`
    code_m(x)   = argmax_l P_m(l | x)
    o_m         = onehot(code_m) + P_m - sg(P_m)                 straight-through: value of one, gradient of both
    x~          = R^T [o_1 C_1 ... o_M C_M]

Source: MoPQ, Section 2.1 (codeword selection) and Equation 1 (straight-through).
Differs from the source: tau, without which the codewords of vectors of length 1 all have about the same probability.

Axes: B queries, X items, P_Q / P_X components, d width of a component, D = P_X d, M subspaces, L codewords, w = D / M.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rails_ray.modules.losses.negatives import Roles
from rails_ray.modules.quantizers.product import ProductQuantizer, Selection, selectors_of, turned

NUM_BALANCINGS = 10  # of rows and columns in turns; shares of codewords are then even to a tenth (tested)


class Quantized(NamedTuple):
    """Items of a batch before and after.

    vectors: x, the components of an item one after the other.
    soft: the mean codeword by its probability.
    """

    vectors: Float[Tensor, "X D"]
    assigned: "Assigned"
    soft: Float[Tensor, "X D"]
    num_components: int


class Matched(NamedTuple):
    """Queries of a batch, and its items.

    query: components of the queries.
    roles: what each item is to each query.
    tau: temperature of the softmax over scores.
    """

    query: Float[Tensor, "B P_Q d"]
    items: Quantized
    roles: Roles
    tau: float

    @property
    def vectors(self) -> Float[Tensor, "X P_X d"]:
        """The items' components."""
        found: Tensor = self.items.vectors.unflatten(1, (self.items.num_components, -1))
        return found

    @property
    def read_back(self) -> Float[Tensor, "X P_X d"]:
        """Return the vectors that codes stand for."""
        found: Tensor = self.items.assigned.read_back.unflatten(1, (self.items.num_components, -1))
        return found


@runtime_checkable
class Method(Protocol):
    """How codebooks are trained, with the encoder or after it. The config of a method is one.

    In the equations of the methods, - log softmax_x(. / tau) stands for the run's own loss, such as beta_nce; a run
    without a loss trains by this softmax, with the temperature of its similarity as tau.

    Default temperatures, and the weights of DQN and DVSQ, did best, or nearly, of a grid on TLDR's validation queries
    (docs/log/codes.md, 2026-11-23). codeword_weight is above 0 as Equation 2 has it, though 0 did best; the other
    weights were not varied.
    """

    @property
    def kind(self) -> str: ...

    def begin(self, start: ProductQuantizer) -> "LearnedQuantizer":
        """Make what is trained, from codebooks that are fitted to the items."""

    def compared(self, items: Quantized) -> Float[Tensor, "X D"]:
        """Return what queries are compared with in the softmax over items."""

    def loss(self, matched: Matched) -> Float[Tensor, " B"]:
        """Return what is added to the softmax's loss of each query, in nats."""


class Assigned(NamedTuple):
    """The codewords of a batch.

    log_probabilities: log P_m(l | x).
    hard: x~, whose gradient is that of the chosen codewords alone.
    read_back: x~, straight-through.
    """

    codes: Int[Tensor, "X M"]
    log_probabilities: Float[Tensor, "X M L"]
    hard: Float[Tensor, "X D"]
    read_back: Float[Tensor, "X D"]


class LearnedQuantizer(nn.Module):
    """A product quantizer whose codebooks are trained. Its rotation is not.

    Args:
        start: what training begins with.
        selection: how codewords are chosen.
        tau: temperature of P, above 0.
        has_own_selectors: whether what chooses a codeword is trained apart from what it stands for.
        has_fixed_codes: whether what chooses a codeword stays as it is in `start`, so that codes never change.
        is_balanced: whether training shares the items of a batch out evenly to the codewords.
    """

    def __init__(
        self,
        start: ProductQuantizer,
        selection: Selection = "l2",
        *,
        tau: float = 1.0,
        has_own_selectors: bool = False,
        has_fixed_codes: bool = False,
        is_balanced: bool = False,
    ) -> None:
        super().__init__()
        num_subspaces, num_codewords, width = start.codebooks.shape
        self.selection: Selection = selection
        self.tau = tau
        self.is_tied = not (has_own_selectors or has_fixed_codes)
        self.has_fixed_codes = has_fixed_codes
        self.is_balanced = is_balanced
        self.codebooks = nn.Parameter(start.codebooks.clone())
        self.bilinear: nn.Parameter | None = None
        if selection == "bilinear":
            self.bilinear = nn.Parameter(torch.eye(width).repeat(num_subspaces, 1, 1))
        if not self.is_tied:
            self.selectors = nn.Parameter(start.selectors.clone(), requires_grad=has_own_selectors)
            self.biases = nn.Parameter(start.biases.clone(), requires_grad=has_own_selectors)
        self.rotation: Tensor | None
        self.register_buffer("rotation", None if start.rotation is None else start.rotation.clone())
        self.num_chosen: Tensor
        self.register_buffer("num_chosen", torch.zeros(num_subspaces, num_codewords))

    @property
    def num_subspaces(self) -> int:
        """M."""
        return self.codebooks.shape[0]

    @property
    def num_codewords(self) -> int:
        """L."""
        return self.codebooks.shape[1]

    @property
    def chosen_by(self) -> tuple[Float[Tensor, "M L w"], Float[Tensor, "M L"]]:
        """Selectors and biases."""
        if not self.is_tied:
            return self.selectors, self.biases
        return selectors_of(self.codebooks, self.selection, self.bilinear)

    @torch.no_grad()
    def frozen(self) -> ProductQuantizer:
        """The quantizer of now.

        Raises:
            ValueError: if a weight is not finite.
        """
        selectors, biases = self.chosen_by
        rotation = None if self.rotation is None else self.rotation.clone()
        return ProductQuantizer(self.codebooks.clone(), selectors.clone(), biases.clone(), rotation)

    def forward(self, vectors: Float[Tensor, "X D"]) -> Assigned:
        """The codewords of a batch."""
        parts = turned(vectors, self.rotation).unflatten(1, (self.num_subspaces, -1)).transpose(0, 1)  # [M, X, w]
        selectors, biases = self.chosen_by
        scores = torch.baddbmm(biases.unsqueeze(1), parts, selectors.transpose(1, 2)) / self.tau  # [M, X, L]
        log_probabilities = F.log_softmax(scores, dim=2)
        balanced = balance(scores.detach()) if self.is_balanced and self.training else scores
        codes = balanced.argmax(dim=2)  # [M, X]
        chosen = self.codebooks.gather(1, codes.unsqueeze(2).expand(-1, -1, self.codebooks.shape[2]))
        probabilities = log_probabilities.exp()
        through = (probabilities - probabilities.detach()) @ self.codebooks.detach()  # 0, with a gradient
        hard, read_back = (
            turned(parts.transpose(0, 1).flatten(start_dim=1), _transposed(self.rotation))
            for parts in (chosen, chosen + through)
        )
        return Assigned(codes.T, log_probabilities.transpose(0, 1), hard, read_back)

    def soft(self, assigned: Assigned) -> Float[Tensor, "X D"]:
        """The mean of all codewords by their probabilities."""
        parts = torch.einsum("xml,mlw->xmw", assigned.log_probabilities.exp(), self.codebooks)
        return turned(parts.flatten(start_dim=1), _transposed(self.rotation))

    # Dead codewords

    @torch.no_grad()
    def count(
        self, codes: Int[Tensor, "X M"], mean_over_workers: Callable[[Tensor], Tensor] = lambda tensor: tensor
    ) -> None:
        """Count the items of a batch that have each codeword, the mean of all workers."""
        of_batch = torch.zeros_like(self.num_chosen).scatter_add_(1, codes.T, torch.ones_like(codes.T).float())
        self.num_chosen += mean_over_workers(of_batch)

    @torch.no_grad()
    def revive(
        self, vectors: Float[Tensor, "X D"], from_first: Callable[[Tensor | None], Tensor | None] = lambda drawn: drawn
    ) -> int:
        """Move each codeword that no item was counted for since the last call onto a random item's part. Returns how
        many; codewords of fixed codes stay.

        Args:
            vectors: items to draw from; without any, all stays as it is.
            from_first: what the first worker has drawn, on each worker.
        """
        is_dead: Bool[Tensor, "M L"] = self.num_chosen == 0
        self.num_chosen.zero_()
        if self.has_fixed_codes:  # elsewhere, a codeword would still be chosen by the items of its old place
            return 0
        drawn = from_first(self._drawn(vectors) if len(vectors) else None)
        if drawn is None or not is_dead.any():
            return 0
        self.codebooks[is_dead] = drawn[is_dead]
        if not self.is_tied:
            selectors, biases = selectors_of(self.codebooks, "l2")
            self.selectors[is_dead], self.biases[is_dead] = selectors[is_dead], biases[is_dead]
        return int(is_dead.sum())

    def _drawn(self, vectors: Float[Tensor, "X D"]) -> Float[Tensor, "M L w"]:
        """The part of a random item for each codeword; of another item for each of a subspace, if there are as many."""
        parts = turned(vectors, self.rotation).unflatten(1, (self.num_subspaces, -1)).transpose(0, 1)  # [M, X, w]
        shuffled = torch.rand(self.num_subspaces, len(vectors), device=vectors.device).argsort(dim=1)  # [M, X]
        rows = shuffled[:, torch.arange(self.num_codewords, device=vectors.device) % len(vectors)]
        drawn: Tensor = parts.gather(1, rows.unsqueeze(2).expand(-1, -1, parts.shape[2])).contiguous()
        return drawn


def balance(scores: Float[Tensor, "M X L"]) -> Float[Tensor, "M X L"]:
    """Log of a plan that shares items out to codewords: every item counts 1, every codeword X / L.

    Source: Cuturi, Sinkhorn Distances (2013), Algorithm 1, in logarithms.
    """
    plan = scores - scores.amax(dim=(1, 2), keepdim=True)
    for _ in range(NUM_BALANCINGS):
        plan = plan - plan.logsumexp(dim=1, keepdim=True)
        plan = plan - plan.logsumexp(dim=2, keepdim=True)
    return plan


def check_numbers(tau: float | None, **weights: float) -> None:
    """
    Raises:
        ValueError: unless tau, if there is one, is above 0, and each weight at least 0.
    """
    if tau is not None and not tau > 0:
        raise ValueError(f"tau must be above 0, got {tau}")
    for name, weight in weights.items():
        if not weight >= 0:
            raise ValueError(f"{name} must be at least 0, got {weight}")


def _transposed(rotation: Tensor | None) -> Tensor | None:
    return None if rotation is None else rotation.T
