"""Scores of a Mixture of Logits for training: one autograd function, whose gradient is worked out by hand.

    c_p   = <f_pq(q), g_px(x)>                                      cosines
    h     = W1 (m' * c) / tau + b1                                  m': logits that dropout keeps, over their share
    z     = u(q) * v(x) + W2 act(h) + b2,     pi = softmax(silu(z))    act: silu or relu
    score = sum_p m_p pi_p c_p / sum_p m_p pi_p                     m: gates that dropout keeps

    with r = dscore / sum_p m_p pi_p, where the softmax takes nothing off as sum_p r m_p pi_p (c_p - score) = 0:
    dz = silu'(z) * r m pi * (c - score),    dh = act'(h) * W2' dz,    dc = r m pi + m' * W1' dh / tau

It keeps one activation [H, N] for the way back, in the dtype of the gate's products, and a few of [P, N]. A caller with
many pairs comes with some of them at a time (`training.parts`). `MixtureOfLogits.forward` is the plain version.

Source: RAILS, Equation 2 and Figure 1; the gradient is ours.

Axes: B queries, X items, C candidates of a query, P_Q / P_X components, P = P_Q * P_X, d width of a component, H hidden
width, N = B * X or B * C pairs of query and item. Inside, pairs of components are in the order in which products leave
them, p_x * P_Q + p_q.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rails_ray.kernels.mol_scan import ACTIVATIONS, Activation, Gate

COLUMNS = 2048  # pairs, of which products in another dtype have a multiple
SMALLEST_SUM = 1e-6  # of the gates that dropout keeps: with none of them a score is 0


class Kept(NamedTuple):
    """Masks of what dropout keeps, 1 or 0: component logits before w, and gates; None if it keeps all.

    share: of the logits that are kept, by which those are divided.
    """

    logits: Float[Tensor, "P N"] | None = None
    gates: Float[Tensor, "P N"] | None = None
    share: float = 1.0


ALL = Kept()


def drawn(shape: tuple[int, int], logit_dropout: float, gate_dropout: float, device: torch.device) -> Kept:
    """Masks from torch's generator; shares are rounded to 1/256, as a number takes one random byte."""
    dropped = round(256 * logit_dropout)
    logits, gates = (_mask(shape, num, device) if num else None for num in (dropped, round(256 * gate_dropout)))
    return Kept(logits, gates, 1 - dropped / 256)


def scores(
    f: Float[Tensor, "B P_Q d"],
    u: Float[Tensor, "B P"],
    g: Float[Tensor, "*BX P_X d"],
    v: Float[Tensor, "*BX P"],
    gate: Gate,
    *,
    kept: Kept = ALL,
    gate_dtype: torch.dtype | None = None,
) -> Float[Tensor, "B X"]:
    """Scores of all items [X] for each query, or of each query's own candidates [B C].

    Args:
        gate_dtype: dtype of the products with W1 and W2, which are most of the arithmetic; by default the weights' own.
    """
    num_components = (f.shape[1], g.shape[-2])
    first, second = _by_item(gate.first, num_components), _by_item(gate.second.T, num_components)
    others = (first, gate.first_bias, second, _by_item(gate.second_bias, num_components))
    states = (f, _by_item(u, num_components), g, _by_item(v, num_components))
    apply: Callable[..., Tensor] = _Mixture.apply
    return apply(*states, *others, gate.temperature, kept, gate_dtype or f.dtype, gate.activation)


class _Mixture(torch.autograd.Function):
    """All that reads a pair of query and item, P or H numbers at a time; second is W2 transposed, [H, P]."""

    @staticmethod
    def forward(
        context: Any,
        f: Tensor,
        u: Tensor,
        g: Tensor,
        v: Tensor,
        first: Tensor,
        first_bias: Tensor,
        second: Tensor,
        second_bias: Tensor,
        tau: float,
        kept: Kept,
        dtype: torch.dtype,
        activation: Activation,
    ) -> Tensor:
        num_queries, num_pairs = u.shape
        num_items = g.shape[-3]
        cosines = _cosines(f, g).view(num_pairs, num_queries * num_items)  # [P, N]
        # The row of ones below adds b1 within the product.
        inputs = _columns(num_pairs + 1, cosines, dtype)
        inputs[num_pairs] = 1
        inputs[:num_pairs, : cosines.shape[1]] = cosines if kept.logits is None else cosines * kept.logits
        weights = torch.cat([first / (tau * kept.share), first_bias[:, None]], dim=1).to(dtype)  # [H, P + 1]
        hidden = weights @ inputs
        activated = ACTIVATIONS[activation](hidden)
        # Contiguous, as what is made of them takes their strides.
        of_item = v.T.contiguous().unsqueeze(1) if v.dim() == 2 else v.permute(2, 0, 1).contiguous()
        z = torch.addcmul(second_bias.view(-1, 1, 1), of_item, u.T.contiguous().unsqueeze(2)).view_as(cosines)
        _add_product(z, second.T.to(dtype), activated)
        gates = torch.softmax(F.silu(z), dim=0)
        if kept.gates is None:
            total = None
            found = (gates * cosines).sum(dim=0)
        else:
            mixed = gates * kept.gates
            total = mixed.sum(dim=0).clamp_(min=SMALLEST_SUM)
            found = mixed.mul_(cosines).sum(dim=0).div_(total)
        context.save_for_backward(f, u, g, v, weights, second, cosines, inputs, hidden, activated, z, gates, found)
        context.total, context.tau, context.kept, context.activation = total, tau, kept, activation
        return found.view(num_queries, num_items)

    @staticmethod
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        f, u, g, v, weights, second, cosines, inputs, hidden, activated, z, gates, found = context.saved_tensors
        kept, num_pairs = context.kept, len(cosines)
        by_pair = slope.reshape(-1) if context.total is None else slope.reshape(-1) / context.total
        of_cosines = gates * by_pair  # [P, N]
        if kept.gates is not None:
            of_cosines *= kept.gates
        of_z = torch.ops.aten.silu_backward((cosines - found).mul_(of_cosines), z)
        of_u, of_v = _of_product(of_z.view(num_pairs, *slope.shape), u, v)
        rounded = of_z
        if hidden.dtype != of_z.dtype:
            rounded = _columns(num_pairs, of_z, hidden.dtype)
            rounded[:, : of_z.shape[1]] = of_z
        of_hidden = _of_activation(second.to(hidden.dtype) @ rounded, hidden, context.activation)  # [H, N]
        of_weights = _over_pairs(of_hidden, inputs).to(second.dtype)
        if kept.logits is None:
            _add_product(of_cosines, weights[:, :num_pairs].T, of_hidden)
        else:
            of_cosines += _product(weights[:, :num_pairs].T, of_hidden, of_cosines) * kept.logits
        of_f, of_g = _of_cosines(of_cosines, f, g)
        of_first = of_weights[:, :num_pairs] / (context.tau * kept.share)
        of_second = _over_pairs(activated, rounded).to(second.dtype)
        return of_f, of_u, of_g, of_v, of_first, of_weights[:, -1], of_second, of_z.sum(dim=1), *(None,) * 4


def _of_activation(slope: Float[Tensor, "H N"], hidden: Float[Tensor, "H N"], activation: Activation) -> Tensor:
    """Gradient at the input of the hidden activation, given the one at its output."""
    aten = torch.ops.aten
    is_relu = activation == "relu"
    found: Tensor = aten.threshold_backward(slope, hidden, 0) if is_relu else aten.silu_backward(slope, hidden)
    return found


def _cosines(f: Float[Tensor, "B P_Q d"], g: Float[Tensor, "*BX P_X d"]) -> Float[Tensor, "P_X P_Q B X"]:
    if g.dim() == 4:
        products: Tensor = g.flatten(1, 2) @ f.transpose(1, 2)  # [B, C * P_X, P_Q]
        return products.view(*g.shape[:3], f.shape[1]).permute(2, 3, 0, 1).contiguous()
    queries: Tensor = f.transpose(0, 1).flatten(end_dim=1)  # [P_Q * B, d]
    found = f.new_empty(g.shape[1], len(queries), len(g))
    for p_x, items in enumerate(g.unbind(1)):
        torch.mm(queries, items.T, out=found[p_x])
    return found.view(g.shape[1], f.shape[1], len(f), len(g))


def _of_cosines(slope: Float[Tensor, "P N"], f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the components, by the cosines'."""
    num_queries, num_query_components, _ = f.shape
    num_item_components = g.shape[-2]
    if g.dim() == 4:
        each = slope.view(num_item_components, num_query_components, *g.shape[:2]).permute(2, 3, 0, 1)
        each = each.reshape(num_queries, g.shape[1] * num_item_components, num_query_components)
        return each.transpose(1, 2) @ g.flatten(1, 2), (each @ f).view(g.shape)
    queries = f.transpose(0, 1).flatten(end_dim=1)
    each = slope.view(num_item_components, len(queries), len(g))
    of_queries = torch.zeros_like(queries)
    of_items = g.new_empty(num_item_components, len(g), g.shape[2])
    for p_x, items in enumerate(g.unbind(1)):
        of_queries.addmm_(each[p_x], items)
        torch.mm(each[p_x].T, queries, out=of_items[p_x])
    return of_queries.view(num_query_components, *f.shape[::2]).transpose(0, 1), of_items.transpose(0, 1)


def _of_product(slope: Float[Tensor, "P B X"], u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of u and v, by their product's."""
    if v.dim() == 3:
        return torch.einsum("pbc,bcp->bp", slope, v), slope.permute(1, 2, 0) * u.unsqueeze(1)
    of_u = torch.bmm(slope, v.T.contiguous().unsqueeze(2)).squeeze(2)
    of_v = torch.bmm(u.T.contiguous().unsqueeze(1), slope).squeeze(1)
    return of_u.T, of_v.T


def _columns(num_rows: int, like: Float[Tensor, "P N"], dtype: torch.dtype) -> Float[Tensor, "_ N2"]:
    """Room for as many columns in a gate's dtype. In another dtype than theirs there are more of them, of zeros: a CPU
    prepares products anew for each shape in bfloat16, so that batches of any size should have few shapes."""
    if dtype == like.dtype:
        return like.new_empty(num_rows, like.shape[1])
    return like.new_zeros(num_rows, -(-like.shape[1] // COLUMNS) * COLUMNS, dtype=dtype)


def _product(left: Float[Tensor, "M K"], right: Float[Tensor, "K N2"], like: Float[Tensor, "M N"]) -> Tensor:
    """left right, cut to the columns of `like` and in its dtype, as sums of two dtypes take twice as long."""
    return (left @ right)[:, : like.shape[1]].to(like.dtype)


def _add_product(into: Float[Tensor, "M N"], left: Float[Tensor, "M K"], right: Float[Tensor, "K N2"]) -> None:
    """into += left right."""
    if into.dtype == right.dtype:
        into.addmm_(left, right)
    else:
        into += _product(left, right, into)


def _over_pairs(left: Float[Tensor, "M N"], right: Float[Tensor, "K N"]) -> Float[Tensor, "M K"]:
    """left right^T. With the smaller one on the right it takes up to half the time."""
    return left @ right.T if len(left) >= len(right) else (right @ left.T).T


def _by_item(pairs: Float[Tensor, "*_ P"], num_components: tuple[int, int]) -> Float[Tensor, "*_ P"]:
    """From the order p_q * P_X + p_x to p_x * P_Q + p_q."""
    each = pairs.view(*pairs.shape[:-1], *num_components)
    return each.transpose(-1, -2).flatten(-2)


def _mask(shape: tuple[int, int], dropped: int, device: torch.device) -> Float[Tensor, "P N"]:
    """0 for so many of 256 and 1 for the others: of a random byte each, eight from a draw. Products with numbers take a
    sixth of the time of products with booleans."""
    num = math.prod(shape)
    words = torch.empty(-(-num // 8), dtype=torch.int64, device=device).random_(-(2**63), None)
    return (words.view(torch.uint8)[:num].view(shape) >= dropped).float()
