"""Differentiable cross-device sampling by primary and image losses: the paper's form, dearer than `gather`.

    primary on i:   L_p^i  = sum over i's queries,      others' items constant
    image on i:     L_c^i  = sum over others' queries,  all constant but i's items
    gradient:       sum_i grad( L_p^i + L_c^i )

The image losses bring back what the constants kept from the primary ones: the gradient of all queries' losses by each
worker's items. They pass it to the items alone; what a similarity and a query learn is in the primary losses already.

Source: MoPQ, Section 3.2, Algorithm 1, Equations 3 to 5.

Axes: B queries, N items of a worker; Q queries, G items of all workers.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rails_ray.training.collectives.gather import gather_constants, with_own
from rails_ray.training.collectives.group import Place

# Query tensors [B ...], what each item is to each query [B ...], item tensors [G ...] -> sum of losses.
LossOf = Callable[[list[Tensor], list[Tensor], list[Tensor]], Tensor]


def primary_and_image(
    loss_of: LossOf,
    query: list[Tensor],
    facts: list[Tensor],
    items: list[Tensor],
    query_place: Place,
    item_place: Place,
) -> Tensor:
    """The sum of the losses of this worker's queries; by the items it has the gradient of all workers' sums together.

    Args:
        facts: tensors of the queries without gradient: which column is positive, which are negative, and weights.

    Raises:
        LostWorkerError: if a worker has died or does not answer.
    """
    constants = [part.detach() for part in gather_constants(items, item_place)]

    def loss_with(own: list[Tensor], query: list[Tensor], facts: list[Tensor]) -> Tensor:
        lines = [with_own(of_all, part, item_place) for of_all, part in zip(constants, own, strict=True)]
        return loss_of(query, facts, lines)

    primary = loss_with(items, query, facts)
    if not torch.is_grad_enabled():
        return primary
    others = [_of_others(part.detach(), query_place) for part in gather_constants([*query, *facts], query_place)]
    leaves = [part.detach().requires_grad_() for part in items]
    image = loss_with(leaves, others[: len(query)], others[len(query) :])
    return with_gradients(primary, items, torch.autograd.grad(image, leaves))


def with_gradients(loss: Tensor, inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """`loss`, whose gradient by the inputs is larger by these; its value stays."""
    for own, gradient in zip(inputs, gradients, strict=True):
        if own.requires_grad:
            beside = (own * gradient).sum()
            loss = loss + (beside - beside.detach())
    return loss


def _of_others(lines: Tensor, place: Place) -> Tensor:
    return torch.cat([lines[: place.own.start], lines[place.own.stop :]])
