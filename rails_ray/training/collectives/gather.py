"""Everyone's lines on every worker, with the gradient that this asks for.

    A = [a_0; ...; a_{W-1}]          backward: dL/da_r = sum_r' dL_r'/dA[lines of r]

Each worker's loss depends on the lines of all. What a worker passes back to its encoder is what all losses together
want of its lines: the backward pass is a reduce-scatter. Then the workers' parameter gradients add up to the gradient
of the sum of their losses; data-parallel training averages, so each loss must be multiplied by W first.

Source: MoPQ, Section 3.2; the same gradient as its primary and image losses (`dcs`), for less work.
Differs from the source: workers may bring different numbers of lines, or none.

Axes: B lines of a worker, G lines of all workers.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rails_ray.training.collectives.group import Place, communicating, num_workers


def gather(tensors: list[Tensor], place: Place) -> list[Tensor]:
    """The lines of all workers of each tensor [B ...], by rank [G ...]; differentiable.

    Args:
        place: `group.place_of` the tensors.

    Raises:
        LostWorkerError: if a worker has died or does not answer.
    """
    if num_workers() == 1:
        return tensors
    return [_Gather.apply(tensor, place) for tensor in tensors]  # type: ignore[no-untyped-call]


def gather_constants(tensors: list[Tensor], place: Place) -> list[Tensor]:
    """Gather lines of which only this worker's own have a gradient: non-differentiable sampling, a baseline (NCS).

    Source: MoPQ, Table 5.
    """
    if num_workers() == 1:
        return tensors
    return [with_own(_lines_of_all(tensor.detach(), place), tensor, place) for tensor in tensors]


def with_own(lines: Tensor, own: Tensor, place: Place) -> Tensor:
    """`lines` of all workers, with `own` in the place of this worker's."""
    return torch.cat([lines[: place.own.start], own, lines[place.own.stop :]])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, place: Place) -> Tensor:
        ctx.place = place
        lines = _lines_of_all(tensor, place)
        if not tensor.is_floating_point():
            ctx.mark_non_differentiable(lines)
        return lines

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _sum_for_owner(gradients[0], ctx.place), None


def _lines_of_all(tensor: Tensor, place: Place) -> Tensor:
    # One exchange that allows different numbers of lines: gloo's own gather does not.
    lines = tensor.new_empty(sum(place.sizes), *tensor.shape[1:])
    to_each = tensor.expand(len(place.sizes), *tensor.shape).flatten(end_dim=1).contiguous()
    with communicating("sharing embeddings"):
        dist.all_to_all_single(lines, to_each, place.sizes, [len(tensor)] * len(place.sizes))
    return lines


def _sum_for_owner(gradient: Tensor, place: Place) -> Tensor:
    """Reduce-scatter, summed in float32 or better, by rank, so that each run sums in the same order."""
    num_lines = place.sizes[place.rank]
    parts = gradient.new_empty(len(place.sizes) * num_lines, *gradient.shape[1:])
    with communicating("sharing gradients of embeddings"):
        dist.all_to_all_single(parts, gradient.contiguous(), [num_lines] * len(place.sizes), place.sizes)
    precise = torch.promote_types(gradient.dtype, torch.float32)
    by_worker = parts.view(len(place.sizes), num_lines, *gradient.shape[1:])
    return by_worker.to(precise).sum(dim=0).to(gradient.dtype)
