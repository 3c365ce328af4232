"""Scores of a Mixture of Logits over cached item-side state, in blocks that fit the cache; [B, X, P] is never held.

    c_p   = <f_pq(q), g_px(x)>                        cosines, p = p_q * P_X + p_x
    z     = u(q) * v(x) + W2 silu(W1 c / tau + b1) + b2
    score = sum_p e^{silu(z_p)} c_p / sum_p e^{silu(z_p)}

As the gates are convex, score <= max_p c_p. An item of which that maximum lies below a score that is of no use any
more (`floor`) needs no gate: where most of a block is such, only the others are gathered and gated.

Source: RAILS, Section 2 and Section 3 (brute force, and the second pass of Algorithm 1).
Differs from the source: the score is tau * phi, a mixture of cosines; 1 / tau goes into W1. Nothing is normalised:
the gates' sum divides their weighted sum once per item.

Axes: B queries, X items, P_Q / P_X components, P = P_Q * P_X, d width of a component, H hidden width, N pairs of query
and item.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

BLOCK_PAIRS = 2**19  # B * x * P of a block: its cosines take 2 MB, which stay in the cache through the gate
PRUNED_SHARE = 0.6  # of a block's items must need a gate for gathering them to cost more than it saves


class Gate(NamedTuple):
    """w(l), the part of the gate that reads the component logits: two layers, SiLU between."""

    first: Float[Tensor, "H P"]
    first_bias: Float[Tensor, " H"]
    second: Float[Tensor, "P H"]
    second_bias: Float[Tensor, " P"]
    temperature: float


def plain_scores(
    f: Float[Tensor, "B P_Q d"],
    u: Float[Tensor, "B P"],
    g: Float[Tensor, "X P_X d"],
    v: Float[Tensor, "X P"],
    gate: Gate,
) -> Float[Tensor, "B X"]:
    """The equation, term by term and all at once: what `scores` must equal."""
    cosines = torch.einsum("bqd,xpd->bxqp", f, g).flatten(start_dim=2)  # [B, X, P]
    hidden = F.silu(F.linear(cosines / gate.temperature, gate.first, gate.first_bias))
    z = u[:, None] * v + F.linear(hidden, gate.second, gate.second_bias)
    return (F.softmax(z * torch.sigmoid(z), dim=-1) * cosines).sum(dim=-1)


def scores(
    f: Float[Tensor, "B P_Q d"],
    u: Float[Tensor, "B P"],
    g: Float[Tensor, "X P_X d"],
    v: Float[Tensor, "X P"],
    gate: Gate,
    *,
    floor: Float[Tensor, " B"] | None = None,
    gate_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B X"]:
    """Scores of all items for each query.

    Args:
        g, v: in any floating dtype; they are widened block by block.
        floor: items whose largest cosine lies below it may get -inf in place of their score.
        gate_dtype: of the products with W1 and W2, which are most of the arithmetic. Scores stay convex mixtures of
            cosines in full precision; with bfloat16 they move by about 1e-3 (tests: at most 1e-2).
    """
    num_items = len(g)
    found = f.new_empty(len(f), num_items)
    weights = _folded(gate, gate_dtype)
    u = u.T.unsqueeze(2)  # [P, B, 1]
    size = max(BLOCK_PAIRS // max(u.numel(), 1), 1)
    for first in range(0, num_items, size):
        block = slice(first, first + size)
        cosines = _cosines(f, g[block].to(f.dtype))  # [P, B, x]
        v_block = v[block].to(f.dtype).T.unsqueeze(1)  # [P, 1, x]
        found[:, block] = _block(cosines, u, v_block, weights, floor)
    return found


def candidate_scores(
    f: Float[Tensor, "B P_Q d"],
    u: Float[Tensor, "B P"],
    g: Float[Tensor, "B C P_X d"],
    v: Float[Tensor, "B C P"],
    gate: Gate,
) -> Float[Tensor, "B C"]:
    """Scores of each query's own candidates, which the caller has gathered."""
    pairs = torch.einsum("bqd,bcpd->qpbc", f, g.to(f.dtype)).flatten(end_dim=1)  # [P, B, C]
    offsets = u.T.unsqueeze(2) * v.to(f.dtype).permute(2, 0, 1)
    return _mixture(pairs.flatten(start_dim=1), offsets.flatten(start_dim=1), _folded(gate, f.dtype)).view_as(pairs[0])


def largest_cosines(f: Float[Tensor, "B P_Q d"], g: Float[Tensor, "X P_X d"]) -> Float[Tensor, "B X"]:
    """max_p c_p, which no score exceeds."""
    return _cosines(f, g.to(f.dtype)).amax(dim=0)


def _folded(gate: Gate, dtype: torch.dtype) -> Gate:
    """1 / tau in the first layer, and both in the dtype of the products."""
    return gate._replace(first=(gate.first / gate.temperature).to(dtype), second=gate.second.to(dtype), temperature=1.0)


def _cosines(f: Float[Tensor, "B P_Q d"], g: Float[Tensor, "X P_X d"]) -> Float[Tensor, "P B X"]:
    return torch.einsum("bqd,xpd->qpbx", f, g).flatten(end_dim=1)


def _block(
    cosines: Float[Tensor, "P B X"],
    u: Float[Tensor, "P B 1"],
    v: Float[Tensor, "P 1 X"],
    gate: Gate,
    floor: Float[Tensor, " B"] | None,
) -> Float[Tensor, "B X"]:
    if floor is not None:
        is_needed = cosines.amax(dim=0) >= floor[:, None]  # [B, X]
        pairs = is_needed.flatten().nonzero()[:, 0]
        if len(pairs) < PRUNED_SHARE * is_needed.numel():
            return _gathered(cosines, u, v, gate, is_needed, pairs)
    return _mixture(cosines.flatten(start_dim=1), (u * v).flatten(start_dim=1), gate).view_as(cosines[0])


def _gathered(
    cosines: Float[Tensor, "P B X"],
    u: Float[Tensor, "P B 1"],
    v: Float[Tensor, "P 1 X"],
    gate: Gate,
    is_needed: Bool[Tensor, "B X"],
    pairs: Tensor,
) -> Float[Tensor, "B X"]:
    """Scores where they are needed, -inf elsewhere."""
    found = torch.full_like(cosines[0], -torch.inf)
    if len(pairs):
        query, item = pairs // found.shape[1], pairs % found.shape[1]
        offsets = u[:, query, 0] * v[:, 0, item]
        found[is_needed] = _mixture(cosines.flatten(start_dim=1)[:, pairs], offsets, gate)
    return found


def _mixture(cosines: Float[Tensor, "P N"], offsets: Float[Tensor, "P N"], gate: Gate) -> Float[Tensor, " N"]:
    """The gated mixture of each column; P comes first, so that all work runs along the long axis."""
    hidden = gate.first @ cosines.to(gate.first.dtype)  # [H, N]
    hidden = F.silu(hidden.add_(gate.first_bias.to(hidden.dtype).unsqueeze(1)), inplace=True)
    offsets = offsets.add_(gate.second_bias.unsqueeze(1))
    if hidden.dtype == offsets.dtype:
        z = offsets.addmm_(gate.second, hidden)
    else:
        z = offsets.add_((gate.second @ hidden).to(offsets.dtype))
    gates = F.softmax(F.silu(z, inplace=True), dim=0)
    return gates.mul_(cosines).sum(dim=0)
