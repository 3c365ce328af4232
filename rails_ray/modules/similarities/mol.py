"""Mixture of Logits: a gated mixture of the cosines of all pairs of query and item components.

    l_p(q, x)   = <f_pq(q), g_px(x)> / tau                      component logits, p = p_q * P_X + p_x
    z(q, x)     = u(q) * v(x) + w(l(q, x))                      w: two layers, SiLU or ReLU between, dropout before
    pi(q, x)    = softmax(z * sigmoid(z))                       gates; in training dropout, then renormalised
    phi(q, x)   = sum_p pi_p(q, x) * l_p(q, x)                  the training logit
    score(q, x) = tau * phi(q, x)                               in [-1, 1]

A gate may read less: without the query u is 1, without the item v is 1, and without the logits w is its last bias.

Source: RAILS (Retrieval with Learned Similarities), Equation 2 and Figure 1.
Differs from the source: tau is missing in Equation 2, where cosines alone could not form a sharp softmax. Search,
cut-offs and the API see `score`, a convex mixture of cosines, so that a threshold means the same for every tau.

Axes: B queries, X items, C candidates, P_Q / P_X components, P = P_Q * P_X, d width of a component, H hidden width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rails_ray.kernels import checked_gradient, hashed_dropout, mol_gradient, mol_scan
from rails_ray.kernels.fused_gradient import FusedGradient
from rails_ray.modules.similarities import Scored
from rails_ray.modules.similarities.states import ItemState, QueryState

GateInput = Literal["query", "item", "logits"]

Precision = Literal["auto", "float32", "bfloat16"]
SMALL = 0.1  # of the weights that torch begins with, where gates begin as their bias says
OPEN = 4.0  # z of a gate that begins open; -OPEN of one that begins closed


@dataclass(frozen=True, kw_only=True)
class MixtureOfLogitsConfig:
    """Sizes and dropout of a Mixture of Logits.

    Args:
        num_query_components: number P_Q of query components; 0 for the vectors of a query, where they are several.
        num_item_components: number P_X of item components; 0 for the vectors of an item, where they are several.
        temperature: tau of the training logit score / tau, above 0.
        gate_hidden: hidden width H of w, the part of the gate that reads the component logits.
        logit_dropout: share of component logits that training drops before w, in [0, 1).
        gate_dropout: share of gates that training drops, in [0, 1).
        gate_activation: activation between the two layers of w. With `relu` a score takes half as many special
            functions, which limit a scan on a GPU.
        gate_inputs: what the gate reads, one of `query`, `item` and `logits` at least.
        gate_precision: dtype of w's products in training, most of the arithmetic. `auto` is bfloat16 on a GPU that has
            a kernel for it, of items that all queries share, and float32 elsewhere. `bfloat16` takes half the time on a
            processor that has it.
    """

    kind: Literal["mixture_of_logits"] = "mixture_of_logits"
    num_query_components: int = 8
    num_item_components: int = 4
    temperature: float = 0.05
    gate_hidden: int = 128
    logit_dropout: float = 0.1
    gate_dropout: float = 0.2
    gate_activation: mol_scan.Activation = "silu"
    gate_inputs: tuple[GateInput, ...] = ("query", "item", "logits")
    gate_precision: Precision = "float32"

    def __post_init__(self) -> None:
        for name, least in (("num_query_components", 0), ("num_item_components", 0), ("gate_hidden", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.gate_inputs:
            raise ValueError("gate_inputs must name query, item or logits, got none")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        for name in ("logit_dropout", "gate_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")


class MixtureOfLogits(nn.Module):
    """The learned similarity of RAILS. Query and item parts of its gate come with the states."""

    has_bounded_vectors = True

    def __init__(self, config: MixtureOfLogitsConfig) -> None:
        super().__init__()
        self.num_components = (config.num_query_components, config.num_item_components)
        self.temperature = config.temperature
        self.logit_dropout = config.logit_dropout
        self.gate_dropout = config.gate_dropout
        self.gate_precision = config.gate_precision
        self.gate_activation = config.gate_activation
        num_pairs = config.num_query_components * config.num_item_components
        reads_logits = "logits" in config.gate_inputs
        first = nn.Linear(num_pairs, config.gate_hidden if reads_logits else 1)
        second = nn.Linear(first.out_features, num_pairs)
        activation = nn.SiLU() if config.gate_activation == "silu" else nn.ReLU()
        self.logit_gate = nn.Sequential(nn.Dropout(config.logit_dropout), first, activation, second)  # w
        if not reads_logits:
            for weights in (first.weight, first.bias, second.weight):
                nn.init.zeros_(weights.requires_grad_(False))

    def start_as_a_dot_product(self) -> None:
        """Let the gates begin at the pairs p_x = p_q, whose components may begin as the same maps: the mean of their
        cosines is one of longer vectors, on which training improves instead of finding it. The other components of a
        longer side begin apart and closed (figures: docs/log/training.md)."""
        self.start_at(torch.eye(*self.num_components, dtype=torch.bool))

    @torch.no_grad()
    def start_at(self, pairs: Bool[Tensor, "P_Q P_X"]) -> None:
        """Let the gates begin at some pairs, all of them alike, and closed at the others."""
        *_, second = self.logit_gate
        assert isinstance(second, nn.Linear)
        second.weight.mul_(SMALL)
        second.bias.copy_((OPEN * (2 * pairs.float() - 1)).flatten())

    def forward(self, query: QueryState, items: ItemState) -> Scored:
        """Scores of each query against all items [X], or against its own candidates [B C].

        Raises:
            ValueError: if a state has other components than the mixture, or no part of its gate.
        """
        of_query, of_items = _gates_of(query, items, self.num_components)
        logits = component_logits(query, items, self.temperature)  # [P, B, X]
        gates = self.gates(logits, of_query, of_items)
        if self.training and self.gate_dropout:
            kept = F.dropout(gates, self.gate_dropout)
            # Renormalising the mixture is renormalising its gates, on a tensor smaller by the factor P.
            phi = (kept * logits).sum(dim=0) / kept.sum(dim=0).clamp(min=1e-6)
        else:
            phi = (gates * logits).sum(dim=0)
        return Scored(self.temperature * phi, gates.permute(1, 2, 0))

    def numbers_per_pair(self, query: QueryState, *, is_shared: bool) -> int:
        """The contract of `Similarity`."""
        if is_shared and self._fused(query) is not None:
            return 1
        num_query_components, num_item_components = self.num_components
        return self._hidden + 4 * num_query_components * num_item_components

    def training_scores(self, query: QueryState, items: ItemState) -> Float[Tensor, "B X"]:
        """The contract of `Similarity`, with dropout in training: by `fused_gradient` on a GPU if all queries share the
        items, by `mol_gradient` elsewhere.

        Raises:
            ValueError: if a state has other components than the mixture, or no part of its gate.
        """
        of_query, of_items = _gates_of(query, items, self.num_components)
        num_queries, num_pairs = of_query.shape
        states = (query.components, of_query, items.components, of_items)
        dropped = (self.logit_dropout, self.gate_dropout, of_query.device)
        fused = self._fused(query) if of_items.dim() == 2 else None
        if fused is not None:
            dropout = hashed_dropout.drawn(num_queries, len(items), *dropped) if self.training else None
            return fused.scores(*states, self.gate_weights(), dropout)
        kept = mol_gradient.ALL
        if self.training:
            kept = mol_gradient.drawn((num_pairs, num_queries * of_items.shape[-2]), *dropped)
        gate_dtype = torch.bfloat16 if self.gate_precision == "bfloat16" else None
        return mol_gradient.scores(*states, self.gate_weights(), kept=kept, gate_dtype=gate_dtype)

    def _fused(self, query: QueryState) -> FusedGradient | None:
        if self.gate_precision == "float32":
            return None
        return checked_gradient.fused_gradient(
            query.components, self.num_components, self._hidden, self.gate_activation
        )

    @property
    def _hidden(self) -> int:
        _, first, _, _ = self.logit_gate
        assert isinstance(first, nn.Linear)
        return first.out_features

    def scores(
        self, query: QueryState, items: ItemState, floor: Float[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B X"]:
        """The contract of `Scorer`, with the weights of now."""
        return self.prepared().scores(query, items, floor)

    @torch.no_grad()
    def prepared(self, gate_dtype: torch.dtype | None = None) -> "PreparedMixture":
        """The contract of `Similarity`.

        Args:
            gate_dtype: as in `MolScan`.
        """
        of_now = self.gate_weights()
        first, first_bias, second, second_bias = (weights.detach().clone() for weights in of_now[:4])
        gate = mol_scan.Gate(first, first_bias, second, second_bias, *of_now[4:])
        return PreparedMixture(self.num_components, gate, mol_scan.MolScan(gate, self.num_components, gate_dtype))

    def gate_weights(self) -> mol_scan.Gate:
        """w, as the scan reads it."""
        _, first, _, second = self.logit_gate
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        weights = first.weight, first.bias, second.weight, second.bias
        return mol_scan.Gate(*weights, self.temperature, self.gate_activation)

    def gates(
        self, logits: Float[Tensor, "P B X"], query_gate: Float[Tensor, "B P"], item_gate: Float[Tensor, "*BX P"]
    ) -> Float[Tensor, "P B X"]:
        """pi(q, x), which sum to 1 over P."""
        u = query_gate.T.unsqueeze(2)  # [P, B, 1]
        v = item_gate.T.unsqueeze(1) if item_gate.dim() == 2 else item_gate.permute(2, 0, 1)  # [P, 1 or B, X]
        dropout, first, activation, second = self.logit_gate
        hidden = activation(_along_last(first, dropout(logits.flatten(1))))  # [H, B * X]
        w = _along_last(second, hidden).view_as(logits)
        return F.softmax(F.silu(torch.addcmul(w, u, v)), dim=0)  # silu(z) = z * sigmoid(z)


@dataclass(frozen=True)
class PreparedMixture:
    """A mixture with the weights of one moment, ready to score."""

    num_components: tuple[int, int]
    gate: mol_scan.Gate
    scan: mol_scan.MolScan

    has_bounded_vectors: ClassVar[bool] = True

    @torch.no_grad()
    def scores(
        self, query: QueryState, items: ItemState, floor: Float[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B X"]:
        """The contract of `Scorer`.

        Raises:
            ValueError: if a state has other components than the mixture, or no part of its gate.
        """
        of_query, of_items = _gates_of(query, items, self.num_components)
        score = self.scan.scores if items.components.dim() == 3 else self.scan.candidate_scores
        return score(query.components, of_query, items.components, of_items, floor)


def _gates_of(
    query: QueryState, items: ItemState, num_components: tuple[int, int]
) -> tuple[Float[Tensor, "B P"], Float[Tensor, "*BX P"]]:
    """u and v, of states that fit a mixture of so many components."""
    if query.gate is None or items.gate is None:
        raise ValueError("a mixture of logits needs the gate of query and item, got a state without one")
    found = (query.components.shape[-2], items.components.shape[-2])
    if found != num_components:
        raise ValueError(
            f"query and item must have the {num_components[0]} and {num_components[1]} components of the mixture, got "
            f"{found[0]} and {found[1]}"
        )
    if query.components.shape[-1] != items.components.shape[-1]:
        raise ValueError(
            f"components of query and item must have one width, got {query.components.shape[-1]} and "
            f"{items.components.shape[-1]}"
        )
    return query.gate, items.gate


def _along_last(layer: nn.Module, inputs: Float[Tensor, "P N"]) -> Float[Tensor, "H N"]:
    """A linear layer over the first axis."""
    assert isinstance(layer, nn.Linear)
    return torch.addmm(layer.bias.unsqueeze(1), layer.weight, inputs)


def component_logits(query: QueryState, items: ItemState, tau: float) -> Float[Tensor, "P B X"]:
    """l_p = <f_pq(q), g_px(x)> / tau of all pairs of components, p = p_q * P_X + p_x.

    P comes first: P is small and B * X large, and both matrix products and element-wise work run along the last axis.
    """
    f, g = query.components / tau, items.components
    if g.dim() == 3:
        return torch.einsum("bqd,xpd->qpbx", f, g).flatten(end_dim=1)
    products: Tensor = torch.bmm(f, g.flatten(1, 2).transpose(1, 2))  # [B, P_Q, C * P_X]
    if products.requires_grad:
        products.register_hook(Tensor.contiguous)  # small products of other strides are taken one by one
    each: Tensor = products.unflatten(2, g.shape[1:3])
    return each.permute(1, 3, 0, 2).flatten(end_dim=1)
