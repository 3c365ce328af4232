"""The ring without processes: a list stands for the workers before this one."""

import pytest
import torch
from torch import Tensor, nn

from rails_ray.modules.losses.negatives import Roles
from rails_ray.modules.losses.sampled_softmax import sampled_softmax
from rails_ray.modules.losses.streaming_log_sum_exp import Sums, softmax_loss, sums_of
from rails_ray.training.collectives.group import Place
from rails_ray.training.collectives.ring import Ring, over_all_items

SIZES = [4, 0, 3, 2]
POSITIVE = torch.tensor([0, 2, 1])


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


class OtherWorkers:
    """Hand on the blocks of all workers, and this one's gradient unchanged, as they have no queries of their own."""

    def __init__(self, blocks: list[Tensor]) -> None:
        self.blocks = blocks
        self.owner = 0
        self.own_gradient: list[Tensor] = []

    def shift(self, tensors: list[Tensor], num_lines: int) -> list[Tensor]:
        block, *gradient = tensors
        assert torch.equal(block, self.blocks[self.owner])
        self.own_gradient = gradient if self.owner == 0 else self.own_gradient
        self.owner = (self.owner - 1) % len(self.blocks)
        taken = self.blocks[self.owner]
        assert len(taken) == num_lines
        if not gradient:
            self.owner = self.owner if self.owner != 1 else 0  # the first round ends here, the second begins anew
            return [taken]
        return [taken, *(self.own_gradient if self.owner == 0 else [torch.zeros_like(taken)])]


@pytest.mark.parametrize("block_size", [1, 2, 3, 100])
def test_it_has_the_loss_and_the_gradients_of_all_items_at_once(block_size: int) -> None:
    query, scale = drawn(3, 5).requires_grad_(), nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    blocks = [drawn(size, 5) for size in SIZES]
    own = blocks[0].clone().requires_grad_()
    seen: list[int] = []

    def sums(queries: list[Tensor], piece: list[Tensor], first: int) -> Sums:
        seen.append(len(piece[0]))
        columns = torch.arange(first, first + len(piece[0]))
        is_own = columns == POSITIVE.unsqueeze(1)
        logits = scale * queries[0] @ piece[0].T
        return sums_of(logits, Roles(POSITIVE - first, is_own, ~is_own), torch.tensor(0.0, dtype=torch.float64))

    ring = Ring(Place(0, SIZES), OtherWorkers(blocks).shift, block_size)
    loss = over_all_items(sums, lambda whole: softmax_loss(whole).sum(), [query], [own], [scale], ring)
    found = torch.autograd.grad(loss, [query, own, scale])

    logits = scale * query @ torch.cat([own, *blocks[1:]]).T
    directly = sampled_softmax(logits, POSITIVE, torch.zeros_like(logits, dtype=torch.bool)).sum()
    assert loss.item() == pytest.approx(directly.item(), rel=1e-12)
    for one, other in zip(found, torch.autograd.grad(directly, [query, own, scale]), strict=True):
        assert torch.allclose(one, other, rtol=1e-10)
    assert max(seen) == min(block_size, max(SIZES))

    with torch.no_grad():
        ring = Ring(Place(0, SIZES), OtherWorkers(blocks).shift, block_size)
        assert over_all_items(sums, lambda whole: softmax_loss(whole).sum(), [query], [own], [scale], ring) == loss


def test_a_piece_drops_out_the_same_in_both_rounds_and_pieces_differ() -> None:
    """The slope of a loss that is linear in what was kept is what was kept."""
    query, own = torch.ones(1, 64, requires_grad=True), torch.ones(2, 64)

    def sums(queries: list[Tensor], piece: list[Tensor], first: int) -> Sums:
        kept = nn.functional.dropout(queries[0] * piece[0], 0.5)
        return Sums(kept.sum(dim=1) - torch.inf, kept.sum(dim=1).expand(4, 1).T)

    ring = Ring(Place(0, [2]), lambda tensors, num_lines: tensors, 1)
    loss = over_all_items(sums, lambda whole: whole.plain.sum() / 4, [query], [own], [], ring)
    loss.backward()
    assert query.grad.sum().item() == pytest.approx(loss.item())
    assert set(query.grad.flatten().tolist()) == {0.0, 2.0, 4.0}  # kept in neither piece, in one, in both
