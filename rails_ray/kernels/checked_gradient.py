"""Where the fused gradient of a mixture is used: on a GPU, once it was compared with `mol_gradient` there."""

import logging
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rails_ray.kernels import mol_gradient
from rails_ray.kernels.fused_gradient import FusedGradient, PaddedSizes
from rails_ray.kernels.fused_scan import why_missing
from rails_ray.kernels.hashed_dropout import STEPS, Dropout
from rails_ray.kernels.mol_scan import Activation, Gate

CHECKED_QUERIES, CHECKED_ITEMS = 70, 150
CHECKED_TEMPERATURE = 0.05
LEAST_CAPABILITY = (9, 0)  # compiled for 8.0, 10 KB of each thread's registers are spilled
# Of the spread of the scores, and of a gradient's norm: above, what was compiled is wrong. `mol_gradient` with operands
# rounded on a CPU has 0.04 to 0.13.
MOST_ERROR = 0.2


def fused_gradient(
    f: Float[Tensor, "B P_Q d"], num_components: tuple[int, int], hidden: int, activation: Activation
) -> FusedGradient | None:
    """A kernel for states like these queries', compared with `mol_gradient` on their device before it is first used, as
    a compiler may be wrong where nothing else shows it; None on a CPU, for other dtypes than float32, and with one line
    in the log where a GPU has to do without.

    Raises:
        ValueError: if Triton interprets kernels, which takes minutes for a step.
    """
    if not f.is_cuda or f.dtype != torch.float32:
        return None
    return _checked(num_components, f.shape[2], hidden, activation, f.device)


@cache
def _checked(
    num_components: tuple[int, int], width: int, hidden: int, activation: Activation, device: torch.device
) -> FusedGradient | None:
    reason = why_missing()
    if reason is None and PaddedSizes.of(num_components, width, hidden) is None:
        p_q, p_x = num_components
        reason = (
            f"a mixture of {p_q} x {p_x} components of width {width}, {hidden} hidden units, does not fit a program"
        )
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        reason = "its way back needs more registers than GPUs before compute capability 9.0 have"
    if reason is None:
        try:
            kernel = FusedGradient(num_components, width, hidden, activation)
            error = largest_error(kernel, device)
        except Exception as failure:  # a compiler's own, of any kind: the other way is right, and slower
            reason = f"it could not be compiled: {type(failure).__name__}: {failure}"
        else:
            if error <= MOST_ERROR:
                return kernel
            reason = f"it is compiled wrongly: scores or gradients are off by {error:.2g} of their size"
    logging.getLogger(__name__).warning("a GPU trains without the fused kernel, and more slowly: %s", reason)
    return None


@torch.enable_grad()
def largest_error(kernel: FusedGradient, device: torch.device) -> float:
    """How far scores and gradients of random states are from those of `mol_gradient` with the same masks: scores over
    their spread, and the difference of a gradient over its norm."""
    sizes = kernel.sizes
    num_pairs, generator = sizes.p_q * sizes.p_x, torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    f, g = (normal(num, p, sizes.d) for num, p in ((CHECKED_QUERIES, sizes.p_q), (CHECKED_ITEMS, sizes.p_x)))
    states = F.normalize(f, dim=2), normal(len(f), num_pairs), F.normalize(g, dim=2), normal(len(g), num_pairs)
    weights = (
        normal(sizes.hidden, num_pairs) / num_pairs**0.5,
        normal(sizes.hidden),
        normal(num_pairs, sizes.hidden) / sizes.hidden**0.5,
        normal(num_pairs),
    )
    slope = normal(len(f), len(g)).to(device)
    of_queries, of_items = (
        torch.randint(-(2**31), 2**31, (num,), generator=generator).int().to(device) for num in (len(f), len(g))
    )
    errors = []
    for dropout in (Dropout(of_queries, of_items, STEPS // 8, STEPS // 4), None):
        found = []
        for is_fused in (True, False):
            leaves = [tensor.to(device).requires_grad_() for tensor in (*states, *weights)]
            f, u, g, v, first, first_bias, second, second_bias = leaves
            gate = Gate(first, first_bias, second, second_bias, CHECKED_TEMPERATURE, kernel.activation)
            if is_fused:
                scores = kernel.scores(f, u, g, v, gate, dropout)
            else:
                kept = mol_gradient.ALL if dropout is None else dropout.kept((sizes.p_q, sizes.p_x))
                scores = mol_gradient.scores(f, u, g, v, gate, kept=kept)
            found.append([scores.detach(), *torch.autograd.grad((scores * slope).sum(), leaves)])
        (scores, *gradients), (exact, *expected) = found
        errors.append((scores - exact).abs().amax() / exact.std())
        errors += [(own - other).norm() / other.norm() for own, other in zip(gradients, expected, strict=True)]
    return float(torch.stack(errors).nan_to_num(torch.inf).amax())
