"""A loss over the items of all workers, in blocks that travel round the ring: no worker ever holds more than a few.

    first round:   sums of each of W blocks, piece by piece, merged                  -> the loss and its slopes
    second round:  each piece again, with gradient; the items' gradient travels on   -> W steps bring it home

Memory holds this worker's queries times a piece of a block; the price is two more rounds. The gradient is the one that
`gather` gives.

Source: MoPQ, Section 3.2 and Equation 6.
Differs from the source: the paper gathers all embeddings.

Axes: B queries, N items of a worker.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rails_ray.modules.losses.streaming_log_sum_exp import Sums, merged, slopes
from rails_ray.training.collectives.dcs import with_gradients
from rails_ray.training.collectives.group import Place, communicating
from rails_ray.training.randomness import drawing, new_seed

# Query tensors [B ...], tensors of a piece of the items [n ...], the column where it begins -> sums over its items.
SumsOf = Callable[[list[Tensor], list[Tensor], int], Sums]
# Hands tensors to the next worker and takes the previous worker's, which have so many lines.
Shift = Callable[[list[Tensor], int], list[Tensor]]


class Ring(NamedTuple):
    """
    place: where this worker's items stand.
    shift: passes blocks on; `shift_on_ring` if the workers are processes.
    block_size: items that are scored at once.
    """

    place: Place
    shift: Shift
    block_size: int

    def owners(self) -> list[int]:
        """Whose block comes by, turn by turn; this worker's own comes first."""
        num_workers = len(self.place.sizes)
        return [(self.place.rank - turn) % num_workers for turn in range(num_workers)]

    def passed_on(self, block: list[Tensor], owner: int) -> list[Tensor]:
        """The block that comes after the one of `owner`."""
        return self.shift(block, self.place.sizes[owner - 1])

    def pieces(self, block: list[Tensor]) -> Iterator[tuple[int, list[Tensor]]]:
        """Parts of a block, at least one, each with the line where it begins."""
        for start in range(0, max(len(block[0]), 1), self.block_size):
            yield start, [part[start : start + self.block_size] for part in block]


def over_all_items(
    sums_of: SumsOf,
    loss_of: Callable[[Sums], Tensor],
    query: list[Tensor],
    items: list[Tensor],
    parameters: list[nn.Parameter],
    ring: Ring,
) -> Tensor:
    """The sum of the losses of this worker's queries over the items of all; differentiable by all that comes in.

    Args:
        loss_of: the sum of losses, from the sums of all items.
        items: this worker's items; tensors of integers (item rows, say) travel along.
        parameters: those that `sums_of` reads and training changes.

    Raises:
        LostWorkerError: if a worker has died or does not answer.
    """
    seed = new_seed()
    whole = _all_sums(sums_of, query, items, ring, seed)
    leaves = Sums(*(part.requires_grad_(torch.is_grad_enabled()) for part in whole))
    loss = loss_of(leaves)
    if not torch.is_grad_enabled():
        return loss
    slope = Sums(*torch.autograd.grad(loss, leaves, materialize_grads=True))
    learnt = [*(part for part in query if part.is_floating_point()), *parameters]
    of_learnt, of_items = _gradients(sums_of, query, items, parameters, ring, seed, whole, slope)
    item_parts = [part for part in items if part.is_floating_point()]
    return with_gradients(loss.detach(), [*learnt, *item_parts], [*of_learnt, *of_items])


@torch.no_grad()
def _all_sums(sums_of: SumsOf, query: list[Tensor], items: list[Tensor], ring: Ring, seed: int) -> Sums:
    whole, block = None, items
    for owner in ring.owners():
        if owner != ring.place.rank:
            block = ring.passed_on(block, (owner + 1) % len(ring.place.sizes))
        first = ring.place.first(owner)
        for start, piece in ring.pieces(block):
            with drawing(seed + first + start, query[0].device):
                part = sums_of(query, piece, first + start)
            whole = part if whole is None else merged(whole, part)
    assert whole is not None
    return whole


def _gradients(
    sums_of: SumsOf,
    query: list[Tensor],
    items: list[Tensor],
    parameters: list[nn.Parameter],
    ring: Ring,
    seed: int,
    whole: Sums,
    slope: Sums,
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of this worker's losses by queries and parameters, and of all workers' losses by its items."""
    queries = [_leaf(part) for part in query]
    learnt = [*(part for part in queries if part.requires_grad), *parameters]
    totals = [torch.zeros_like(part, dtype=_precise(part)) for part in learnt]
    block = [*items, *(torch.zeros_like(part, dtype=_precise(part)) for part in items if part.is_floating_point())]
    for owner in ring.owners():
        first = ring.place.first(owner)
        travelling = block[len(items) :]
        for start, piece in ring.pieces([_leaf(part) for part in block[: len(items)]]):
            with torch.enable_grad(), drawing(seed + first + start, query[0].device):
                part = sums_of(queries, piece, first + start)
            by = [*learnt, *(part for part in piece if part.requires_grad)]
            found = torch.autograd.grad(
                tuple(part), by, tuple(slopes(part, whole, slope)), allow_unused=True, materialize_grads=True
            )
            for total, gradient in zip(totals, found[: len(learnt)], strict=True):
                total += gradient
            for total, gradient in zip(travelling, found[len(learnt) :], strict=True):
                total[start : start + len(gradient)] += gradient
        block = ring.passed_on(block, owner)
    return totals, block[len(items) :]


def shift_on_ring(tensors: list[Tensor], num_lines: int) -> list[Tensor]:
    """Hand tensors to the next worker, and take the previous worker's.

    Args:
        num_lines: how many lines come.

    Raises:
        LostWorkerError: if a worker has died or does not answer.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return tensors
    size, rank = dist.get_world_size(), dist.get_rank()
    taken = [tensor.new_empty(num_lines, *tensor.shape[1:]) for tensor in tensors]
    sends = [dist.P2POp(dist.isend, tensor.contiguous(), (rank + 1) % size) for tensor in tensors]
    takes = [dist.P2POp(dist.irecv, tensor, (rank - 1) % size) for tensor in taken]
    with communicating("passing embeddings on"):
        for work in dist.batch_isend_irecv([*sends, *takes]):
            work.wait()
    return taken


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())


def _precise(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
