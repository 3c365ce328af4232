"""Scores of a Mixture of Logits over cached item-side state, in blocks that fit the cache; [B, X, P] is never held.

    c_p   = <f_pq(q), g_px(x)>                        cosines, p = p_q * P_X + p_x
    z     = u(q) * v(x) + W2 act(W1 c / tau + b1) + b2                act: silu or relu
    score = sum_p e^{silu(z_p)} c_p / sum_p e^{silu(z_p)}

As the gates are convex, score <= max_p c_p. An item whose maximum lies below `floor`, under which no score is of use,
needs no gate and gets -inf: if most items of a block are such, only the others are gathered and gated.

Source: RAILS, Section 2 and Section 3 (brute force, and the second pass of Algorithm 1).
Differs from the source: the score is tau * phi, a mixture of cosines; 1 / tau goes into W1. Gates are not normalised:
their sum divides the weighted sum once per item.

Axes: B queries, X items, P_Q / P_X components, P = P_Q * P_X, d width of a component, H hidden width, N pairs of query
and item.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

BLOCK_PAIRS = 2**19  # B * x * P of a block: its cosines take 2 MB, which stay in the cache through the gate
GPU_BLOCK_PAIRS = 2**23  # 32 MB: a GPU has no such cache, and waits for its kernels to be launched
LARGEST_EXPONENT = 60.0  # e^60 is far from the end of float32, and so is a sum of P of them
KEPT_NUMBERS = 2**24  # 64 MB: what a search of more candidates takes, it gives back
Activation = Literal["silu", "relu"]
ACTIVATIONS: dict[Activation, Callable[..., Any]] = {"silu": F.silu, "relu": F.relu}
PRUNED_SHARE = 0.6  # of a block's items must need a gate for gathering them to cost more than it saves


class Gate(NamedTuple):
    """w(l), the part of the gate that reads the component logits: two layers, an activation between."""

    first: Float[Tensor, "H P"]
    first_bias: Float[Tensor, " H"]
    second: Float[Tensor, "P H"]
    second_bias: Float[Tensor, " P"]
    temperature: float
    activation: Activation = "silu"


def plain_scores(
    f: Float[Tensor, "B P_Q d"],
    u: Float[Tensor, "B P"],
    g: Float[Tensor, "X P_X d"],
    v: Float[Tensor, "X P"],
    gate: Gate,
) -> Float[Tensor, "B X"]:
    """The equation, term by term and all at once: what `MolScan` must equal."""
    cosines = torch.einsum("bqd,xpd->bxqp", f, g).flatten(start_dim=2)  # [B, X, P]
    hidden = ACTIVATIONS[gate.activation](F.linear(cosines / gate.temperature, gate.first, gate.first_bias))
    z = u[:, None] * v + F.linear(hidden, gate.second, gate.second_bias)
    return (F.softmax(z * torch.sigmoid(z), dim=-1) * cosines).sum(dim=-1)


class MolScan:
    """A gate that is ready to score: its weights as blocks read them, and memory that searches share.

    Several threads may search at once; each takes memory of its own, which the next search uses again.

    Args:
        num_components: (P_Q, P_X).
        gate_dtype: dtype of the products with W1 and W2, which are most of the arithmetic; by default the weights' own.
            In any dtype a score is a convex mixture of the item's cosines in full precision; only their spread limits
            how far it moves. W1 reads cosines / tau, so errors grow with 1 / tau, with the weights and with short
            components, whose cosines are large. With initial weights in bfloat16, the largest error of 9,600 scores is

                P_Q x P_X x d    tau .2     tau .05    tau .02    tau .01
                8 x 8 x 32       .0002      .0013      .005       .011
                2 x 3 x 4        .004       .015       .047       .065

            Four times these weights raise 8 x 8 x 32 at tau .05 to .044, and 2 x 3 x 4 at tau .01 to 1.04.
    """

    def __init__(self, gate: Gate, num_components: tuple[int, int], gate_dtype: torch.dtype | None = None) -> None:
        self.weights = _prepared(gate, _by_item_component(*num_components, gate.first.device), gate_dtype)
        self._idle: list[_Workspace] = []

    def scores(
        self,
        f: Float[Tensor, "B P_Q d"],
        u: Float[Tensor, "B P"],
        g: Float[Tensor, "X P_X d"],
        v: Float[Tensor, "X P"],
        floor: Float[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B X"]:
        """Scores of all items for each query.

        Args:
            g, v: item states in any floating dtype; they are widened block by block.
            floor: items whose largest cosine lies below it get -inf in place of their score.
        """
        num_queries, (num_items, num_item_components, _) = len(f), g.shape
        found = f.new_empty(num_queries, num_items)
        if not found.numel():
            return found
        order = self.weights.order
        queries = f.transpose(0, 1).flatten(end_dim=1).expand(num_item_components, -1, -1)  # [P_X, P_Q * B, d]
        u = u[:, order].T.unsqueeze(2)  # [P, B, 1]
        block_pairs = GPU_BLOCK_PAIRS if f.is_cuda else BLOCK_PAIRS
        size = min(max(block_pairs // u.numel(), 1), num_items)
        with self._workspace() as space:
            for first in range(0, num_items, size):
                end = min(first + size, num_items)
                shape = (u.shape[0], num_queries, end - first)
                cosines = space.of("cosines", shape[0], math.prod(shape[1:]))  # [P, N]
                each = cosines.view(*queries.shape[:2], end - first)
                torch.bmm(queries, g[first:end].to(f.dtype).permute(1, 2, 0), out=each)
                v_block = v[first:end].to(f.dtype).T[order].unsqueeze(1)  # [P, 1, x]
                found[:, first:end] = _block(cosines.view(shape), u, v_block, self.weights, floor, space)
        return found

    def candidate_scores(
        self,
        f: Float[Tensor, "B P_Q d"],
        u: Float[Tensor, "B P"],
        g: Float[Tensor, "B C P_X d"],
        v: Float[Tensor, "B C P"],
        floor: Float[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B C"]:
        """Scores of each query's own candidates, which the caller has gathered.

        Args:
            floor: as in `scores`.
        """
        num_queries, num_candidates, _, width = g.shape
        if not num_queries * num_candidates:
            return f.new_empty(num_queries, num_candidates)
        weights, num_columns = self.weights, num_queries * num_candidates
        products = torch.bmm(g.to(f.dtype).reshape(num_queries, -1, width), f.transpose(1, 2))  # [B, C * P_X, P_Q]
        u, v = u[:, weights.order], v.to(f.dtype)[:, :, weights.order]
        with self._workspace() as space:
            cosines = space.of("cosines", u.shape[1], num_columns)
            cosines.copy_(products.view(num_columns, -1).T)
            is_needed = None if floor is None else _reaching(cosines, floor)
            if is_needed is not None and _are_few(is_needed):
                return _gathered(is_needed, cosines, u.T, v.flatten(end_dim=1).T, weights, space)
            z = space.of("z", u.shape[1], num_columns)
            z.copy_((u.unsqueeze(1) * v).flatten(end_dim=1).T)
            mixed = _mixture(cosines, z.add_(weights.second_bias[:, :, 0]), weights, space)
            found = mixed.view(num_queries, num_candidates)
            return found if is_needed is None else found.masked_fill_(~is_needed, -torch.inf)

    @contextmanager
    def _workspace(self) -> Iterator["_Workspace"]:
        try:
            space = self._idle.pop()
        except IndexError:
            space = _Workspace(self.weights.second_bias)
        yield space
        if len(space) <= KEPT_NUMBERS and not self.weights.second_bias.is_cuda:  # whose allocator keeps what is freed
            self._idle.append(space)


class _Workspace:
    """Memory of one search at a time: asking the system for megabytes again and again takes longer than filling them.

    Args:
        like: a tensor of the same dtype and device.
    """

    def __init__(self, like: Tensor) -> None:
        self.memory = {name: like.new_empty(0) for name in ("cosines", "hidden", "z", "gates")}

    def __len__(self) -> int:
        """How many numbers it holds."""
        return sum(map(len, self.memory.values()))

    def of(self, name: str, rows: int, columns: int) -> Tensor:
        """An array [rows, columns] that lasts until the same one is asked for again."""
        if len(self.memory[name]) < rows * columns:
            self.memory[name] = self.memory[name].new_empty(rows * columns)
        return self.memory[name][: rows * columns].view(rows, columns)


class _Prepared(NamedTuple):
    """A gate's weights as the blocks read them: 1 / tau in the first layer, products in one dtype, pairs in `order`."""

    first: Float[Tensor, "H P"]
    first_bias: Float[Tensor, "H 1"]
    second: Float[Tensor, "P H"]
    second_bias: Float[Tensor, "P 1 1"]
    activate: Callable[..., Any]
    order: Int[Tensor, " P"]


def _by_item_component(num_query_components: int, num_item_components: int, device: torch.device) -> Int[Tensor, " P"]:
    """The pairs p in the order in which their cosines come out of a product: p_x first."""
    pairs = torch.arange(num_query_components * num_item_components, device=device)
    return pairs.view(num_query_components, num_item_components).T.flatten()


def _prepared(gate: Gate, order: Int[Tensor, " P"], dtype: torch.dtype | None) -> _Prepared:
    dtype = dtype or gate.first.dtype
    return _Prepared(
        first=(gate.first[:, order] / gate.temperature).to(dtype),
        first_bias=gate.first_bias.unsqueeze(1).clone(),
        second=gate.second[order].to(dtype),
        second_bias=gate.second_bias[order].view(-1, 1, 1),
        activate=ACTIVATIONS[gate.activation],
        order=order,
    )


def _block(
    cosines: Float[Tensor, "P B X"],
    u: Float[Tensor, "P B 1"],
    v: Float[Tensor, "P 1 X"],
    gate: _Prepared,
    floor: Float[Tensor, " B"] | None,
    space: _Workspace,
) -> Float[Tensor, "B X"]:
    flat = cosines.flatten(start_dim=1)
    is_needed = None if floor is None else _reaching(flat, floor)
    if is_needed is not None and _are_few(is_needed):
        return _gathered(is_needed, flat, u[:, :, 0], v[:, 0], gate, space)
    offsets = space.of("z", *flat.shape)
    torch.addcmul(gate.second_bias, u, v, out=offsets.view(cosines.shape))
    found = _mixture(flat, offsets, gate, space).view(cosines.shape[1:])
    return found if is_needed is None else found.masked_fill_(~is_needed, -torch.inf)


def _reaching(cosines: Float[Tensor, "P N"], floor: Float[Tensor, " B"]) -> Bool[Tensor, "B X"]:
    """Which pairs have a cosine that reaches the floor."""
    return cosines.amax(dim=0).view(len(floor), -1) >= floor[:, None]


def _are_few(is_needed: Bool[Tensor, "B X"]) -> bool:
    """Decide if gathering the pairs that need a gate costs less than it saves."""
    return int(is_needed.sum()) < PRUNED_SHARE * is_needed.numel()


def _gathered(
    is_needed: Bool[Tensor, "B X"],
    cosines: Float[Tensor, "P N"],
    u: Float[Tensor, "P B"],
    v: Float[Tensor, "P _"],
    gate: _Prepared,
    space: _Workspace,
) -> Float[Tensor, "B X"]:
    """Scores of the pairs that are needed, -inf elsewhere.

    Args:
        v: v(x) of the X items that all queries share, or of each of the N pairs.
    """
    pairs = is_needed.flatten().nonzero()[:, 0]
    # index_select takes a quarter of the time of indexing by a tensor.
    z = u.index_select(1, pairs // is_needed.shape[1]).mul_(v.index_select(1, pairs % v.shape[1]))
    z.add_(gate.second_bias[:, :, 0])
    found = cosines.new_full(is_needed.shape, -torch.inf)
    found[is_needed] = _mixture(cosines.index_select(1, pairs), z, gate, space)
    return found


def _mixture(
    cosines: Float[Tensor, "P N"], z: Float[Tensor, "P N"], gate: _Prepared, space: _Workspace
) -> Float[Tensor, " N"]:
    """The gated mixture of each column; P comes first, so that all work runs along the long axis.

    Args:
        z: the part of it that does not read the cosines; changed in place.
    """
    if gate.first.dtype == cosines.dtype:
        hidden = torch.mm(gate.first, cosines, out=space.of("hidden", len(gate.first), cosines.shape[1]))
        z.addmm_(gate.second, gate.activate(hidden.add_(gate.first_bias), inplace=True))
    else:
        hidden = gate.first @ cosines.to(gate.first.dtype)
        z.add_(gate.second @ gate.activate(hidden.add_(gate.first_bias.to(hidden.dtype)), inplace=True))
    F.silu(z, inplace=True)
    # A GPU subtracts at once: to look would be to wait for it. NaN, of one item, must not keep the others from it.
    if not z.is_cpu or (z.numel() and not z.amax() <= LARGEST_EXPONENT):
        z.sub_(z.amax(dim=0))
    gates = torch.exp(z, out=space.of("gates", *z.shape))
    total = gates.sum(dim=0)
    return gates.mul_(cosines).sum(dim=0).div_(total)
