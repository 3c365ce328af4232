"""Scores of a Mixture of Logits for training and their gradient, by one kernel: what a pair of query and item needs
stays on the chip, there and back.

The equations are those of `mol_gradient`, of items that all queries share. Memory holds B X scores and, on the way
back, partial sums of the gradients, of the weights 2 P H for every 128 / P_Q queries. All else of a pair is computed
anew, for the gradient of the queries, of the items and of the weights. Sums have one order, so that a step gives the
same on each run.

Components are read as float16, and products of the gate take bfloat16, whose range gradients need; all are added up in
float32. A score stays a mixture of cosines, off by some 1e-3.

Sizes are padded: P_Q, P_X, d and H to powers of two, with at least 16 pairs. `checked_gradient` says where it is used.

Axes: B queries, X items, P_Q / P_X components, P = P_Q * P_X, d width of a component, H hidden width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.kernels.fused_scan import LEAST_OF_A_PRODUCT, WIDEST_TILE, power_of_two, triton_kernels
from rails_ray.kernels.hashed_dropout import Dropout
from rails_ray.kernels.mol_scan import Activation, Gate

MOST_COMPONENTS, MOST_PAIRS = 64, 128  # of a side, and of both
LEAST_HIDDEN = 32  # in two halves
LARGEST_LAYER = 2**13  # P * H: gradients of both layers, in float32, are a quarter of a multiprocessor's registers
PROGRAMS = 512  # that keep a large GPU busy
Task = Literal["scores", "rows", "weights"]
WARPS: dict[Task, int] = {"scores": 4, "rows": 4, "weights": 8}
PAIRS_OF_A_WARP = 16  # of query and item; rows have as many components
OPERANDS = (torch.float16, torch.bfloat16)  # of components, and of the gate


@dataclass(frozen=True)
class PaddedSizes:
    """Sizes of a mixture, and to what they are padded."""

    p_q: int
    p_x: int
    d: int
    hidden: int
    PQ: int
    PX: int
    DK: int
    H: int

    @classmethod
    def of(cls, num_components: tuple[int, int], width: int, hidden: int) -> "PaddedSizes | None":
        """Pad them; None for a mixture that does not fit a program."""
        p_q, p_x = num_components
        padded_q, padded_x = power_of_two(p_q), power_of_two(p_x)
        padded_x = max(padded_x, LEAST_OF_A_PRODUCT // padded_q)
        padded_d, padded_h = max(power_of_two(width), LEAST_OF_A_PRODUCT), max(power_of_two(hidden), LEAST_HIDDEN)
        num = padded_q * padded_x
        if max(padded_q, padded_x) > MOST_COMPONENTS or num > MOST_PAIRS:
            return None
        if padded_d > WIDEST_TILE or num * padded_h > LARGEST_LAYER:
            return None
        return cls(p_q, p_x, width, hidden, padded_q, padded_x, padded_d, padded_h)

    def constants(self, task: Task, *, is_turned: bool) -> dict[str, int]:
        """The kernel's constants.

        Args:
            is_turned: for queries as rows and items as columns.
        """
        rows, columns = (self.p_q, self.PQ), (self.p_x, self.PX)
        if not is_turned:
            rows, columns = columns, rows
        sizes = {"p_r": rows[0], "p_c": columns[0], "PR": rows[1], "PC": columns[1], "DK": self.DK, "H": self.H}
        at_once = {"R": WARPS[task] * PAIRS_OF_A_WARP // rows[1], "C": rows[1]}
        flags = {"IS_TURNED": is_turned, "HAS_ROWS": task == "rows", "HAS_WEIGHTS": task == "weights"}
        return {**sizes, **at_once, **flags}

    def order(self, device: torch.device, *, is_turned: bool) -> Int[Tensor, " P_"]:
        """The pair p = p_q * P_X + p_x at each place of the kernel's order, rows' components first; P for padding."""
        place = torch.arange(self.PQ * self.PX, device=device)
        if is_turned:
            p_q, p_x = place // self.PX, place % self.PX
        else:
            p_x, p_q = place // self.PQ, place % self.PQ
        is_pair = (p_q < self.p_q) & (p_x < self.p_x)
        return torch.where(is_pair, p_q * self.p_x + p_x, self.p_q * self.p_x)


class FusedGradient:
    """Scores of mixtures of one shape, with their gradient, in one kernel.

    Args:
        num_components: (P_Q, P_X).
        width: d.
        hidden: H.
        operands: dtypes of the products of components, and of the gate.

    Raises:
        ValueError: if the mixture does not fit a program, or Triton is not there.
    """

    def __init__(
        self,
        num_components: tuple[int, int],
        width: int,
        hidden: int,
        activation: Activation,
        operands: tuple[torch.dtype, torch.dtype] = OPERANDS,
    ) -> None:
        kernels, sizes = triton_kernels(), PaddedSizes.of(num_components, width, hidden)
        if kernels is None or sizes is None:
            raise ValueError("a fused gradient needs Triton 3.7.1 or later, and a mixture that fits a program")
        from rails_ray.kernels import fused_gradient_kernel  # imports Triton

        self.kernel: Any = fused_gradient_kernel.mol_training
        self.sizes = sizes
        self.activation = activation
        self.operands = operands

    def scores(
        self,
        f: Float[Tensor, "B P_Q d"],
        u: Float[Tensor, "B P"],
        g: Float[Tensor, "X P_X d"],
        v: Float[Tensor, "X P"],
        gate: Gate,
        dropout: Dropout | None = None,
    ) -> Float[Tensor, "B X"]:
        """Scores of all items for each query, differentiable once, as those of `mol_gradient.scores`."""
        apply: Callable[..., Tensor] = _Scores.apply
        return apply(f, u, g, v, *gate[:4], gate.temperature, dropout, self)


class _Scores(torch.autograd.Function):
    """Keeps what it reads and the words of the masks."""

    @staticmethod
    def forward(context: Any, *inputs: Any) -> Tensor:
        states, weights, (tau, dropout, kernel) = inputs[:4], inputs[4:8], inputs[8:]
        context.save_for_backward(*inputs[:8])
        context.rest = tau, dropout, kernel
        by_query = _Launch.of(states, weights, tau, dropout, kernel, is_turned=True)
        found: Tensor = states[0].new_empty(len(states[0]), len(states[2]))
        by_query.run(found, "scores")
        return found

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        saved, (tau, dropout, kernel) = context.saved_tensors, context.rest
        slope = slopes[0].contiguous()
        by_query, by_item = (
            _Launch.of(saved[:4], saved[4:], tau, dropout, kernel, is_turned=is_turned) for is_turned in (True, False)
        )
        of_f, of_u = by_query.of_rows(slope)
        of_g, of_v = by_item.of_rows(slope)
        of_first, of_first_bias, of_second, of_second_bias = by_query.of_weights(slope)
        of_first = of_first / (tau * (1 if dropout is None else dropout.share))
        return of_f, of_u, of_g, of_v, of_first, of_first_bias, of_second.T, of_second_bias, None, None, None


@dataclass(frozen=True)
class _Launch:
    """One launch of the kernel: what it reads, padded, with rows and columns in its order.

    rows, columns: their components, gates and words.
    weights: W1 over tau, b1, W2 transposed and b2.
    order: as `PaddedSizes.order`.
    """

    kernel: FusedGradient
    rows: tuple[Tensor, Tensor, Tensor]
    columns: tuple[Tensor, Tensor, Tensor]
    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    order: Tensor
    dropout: Dropout | None
    is_turned: bool

    @classmethod
    def of(
        cls,
        states: tuple[Tensor, ...],
        weights: tuple[Tensor, ...],
        tau: float,
        dropout: Dropout | None,
        kernel: FusedGradient,
        *,
        is_turned: bool,
    ) -> "_Launch":
        (f, u, g, v), (first, first_bias, second, second_bias) = states, weights
        sizes, of_gate = kernel.sizes, kernel.operands[1]
        order = sizes.order(f.device, is_turned=is_turned)
        divisor = tau if dropout is None else tau * dropout.share

        def by_pair(values: Tensor) -> Tensor:
            return F.pad(values, (0, 1)).index_select(-1, order)

        def side(components: Tensor, padded: int, gates: Tensor, words: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
            padding = (0, sizes.DK - sizes.d, 0, padded - components.shape[1])
            own = F.pad(components.to(kernel.operands[0]), padding).contiguous()
            return own, by_pair(gates), gates if words is None else words

        queries = side(f, sizes.PQ, u, None if dropout is None else dropout.query_words)
        items = side(g, sizes.PX, v, None if dropout is None else dropout.item_words)
        more = sizes.H - sizes.hidden
        layers = F.pad(by_pair(torch.stack([first / divisor, second.T])), (0, 0, 0, more)).to(of_gate)
        padded = layers[0], F.pad(first_bias, (0, more)), layers[1], by_pair(second_bias)
        rows, columns = (queries, items) if is_turned else (items, queries)
        return cls(kernel, rows, columns, padded, order, dropout, is_turned)

    def run(self, pairs: Float[Tensor, "B X"], task: Task) -> tuple[Tensor, ...]:
        """Write scores there, or read their slopes and return partial sums of gradients: of the rows' components
        [shares, rows, PR, DK] and gates [shares, rows, P], or of the weights [programs, all of them]."""
        constants = self.kernel.sizes.constants(task, is_turned=self.is_turned)
        num_rows, num_columns, at_once = len(self.rows[0]), len(self.columns[0]), constants["C"]
        tiles = -(-num_rows // constants["R"])
        shares = min(max(PROGRAMS // max(tiles, 1), 1), max(-(-num_columns // at_once), 1))
        each = max(-(-num_columns // (at_once * shares)), 1) * at_once
        grid = tiles, max(-(-num_columns // each), 1)
        components, gates, _ = self.rows
        made = of_components, of_gates, of_weights = (
            pairs.new_empty(grid[1] if task == "rows" else 0, *components.shape),
            pairs.new_empty(grid[1] if task == "rows" else 0, *gates.shape),
            pairs.new_empty(tiles * grid[1] if task == "weights" else 0, sum(map(torch.numel, self.weights))),
        )
        if tiles:
            with torch.cuda.device_of(pairs):
                self.kernel.kernel[grid](
                    *self.rows, *self.columns, *self.weights, pairs, *made,
                    num_rows, num_columns, each,
                    0 if self.dropout is None else self.dropout.logits,
                    0 if self.dropout is None else self.dropout.gates,
                    0,
                    **constants,
                    DROPS=self.dropout is not None,
                    IS_RELU=self.kernel.activation == "relu",
                    HAS_TANH=pairs.is_cuda and torch.version.hip is None,
                    PRECISION="ieee",
                    num_warps=WARPS[task],
                    num_stages=1,
                )  # fmt: skip
        return (of_weights,) if task == "weights" else (of_components, of_gates)

    def of_rows(self, slope: Float[Tensor, "B X"]) -> tuple[Tensor, Tensor]:
        """Gradients of the rows' components and gates."""
        sizes = self.kernel.sizes
        of_components, of_gates = self.run(slope, "rows")
        num_components = sizes.p_q if self.is_turned else sizes.p_x
        return of_components.sum(dim=0)[:, :num_components, : sizes.d], self._unpadded(of_gates.sum(dim=0))

    def of_weights(self, slope: Float[Tensor, "B X"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of W1 over tau, b1, W2 transposed and b2."""
        sizes, layer = self.kernel.sizes, self.weights[0].numel()
        (found,) = self.run(slope, "weights")
        first, second, first_bias, second_bias = found.sum(dim=0).split([layer, layer, sizes.H, len(self.order)])
        of_first, of_second = (self._unpadded(own.view(sizes.H, -1)[: sizes.hidden]) for own in (first, second))
        return of_first, first_bias[: sizes.hidden], of_second, self._unpadded(second_bias)

    def _unpadded(self, values: Float[Tensor, "... P_"]) -> Float[Tensor, "... P"]:
        """From the kernel's order back to p_q * P_X + p_x."""
        num_pairs = self.kernel.sizes.p_q * self.kernel.sizes.p_x
        found = values.new_empty(*values.shape[:-1], num_pairs + 1)
        return found.index_copy_(-1, self.order, values)[..., :num_pairs]
