"""A sum over queries, taken a part at a time: each part goes forward and back before the next one begins.

So what a similarity keeps for the way back exists for one part of the pairs of query and item, and is never computed
twice. What is left of it is its gradient, by the queries, the items and the weights.

Axes: B queries.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.training.collectives.dcs import with_gradients

NUMBERS_ON_CPU = 2**23  # of a part; calls take longer than arithmetic with many fewer
NUMBERS_ON_GPU = 2**27  # fewer would not fill a GPU


def equal_parts(num_queries: int, numbers_per_query: int, device: torch.device) -> list[slice]:
    """Parts of as many queries as are kept at once; one part at least.

    Args:
        numbers_per_query: numbers that are kept for the way back of one query.
    """
    numbers = NUMBERS_ON_CPU if device.type == "cpu" else NUMBERS_ON_GPU
    size = max(numbers // max(numbers_per_query, 1), 1)
    return [slice(first, min(first + size, num_queries)) for first in range(0, max(num_queries, 1), size)]


def sum_in_parts(
    loss_of: Callable[[slice, list[Tensor], list[Tensor]], Float[Tensor, ""]],
    lines: Sequence[Tensor],
    shared: Sequence[Tensor],
    weights: Sequence[Tensor],
    parts: Sequence[slice],
) -> Float[Tensor, ""]:
    """The sum of losses over queries, differentiable by all that comes in.

    Args:
        loss_of: the loss of some queries, by their lines and all that they share.
        lines: tensors of queries [B ...].
        shared: tensors that all queries read.
        weights: what `loss_of` reads beside them, and training changes.
        parts: the queries of each part, all of them in their order.
    """
    if not torch.is_grad_enabled():
        return sum(
            (loss_of(part, [line[part] for line in lines], list(shared)) for part in parts), lines[0].new_zeros(())
        )
    if len(parts) == 1:
        return loss_of(parts[0], list(lines), list(shared))
    inputs = [*lines, *shared, *weights]
    gradients = [torch.zeros_like(tensor) for tensor in inputs]
    common = [_leaf(tensor) for tensor in shared]
    total = lines[0].new_zeros(())
    for part in parts:
        own = [_leaf(line[part]) for line in lines]
        loss = loss_of(part, own, common)
        total = total + loss.detach()
        into = [*(gradient[part] for gradient in gradients[: len(lines)]), *gradients[len(lines) :]]
        learnt = [(leaf, place) for leaf, place in zip([*own, *common, *weights], into, strict=True) if _learns(leaf)]
        found = torch.autograd.grad(loss, [leaf for leaf, _ in learnt], allow_unused=True)
        for (_, place), gradient in zip(learnt, found, strict=True):
            if gradient is not None:
                place += gradient
    return with_gradients(total, inputs, gradients)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _learns(tensor: Tensor) -> bool:
    return tensor.requires_grad
