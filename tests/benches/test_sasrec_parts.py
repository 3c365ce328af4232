"""The sketch of the public SASRec: attention over sinks is attention over padding at the beginning."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import layer_norm, relu

from jobs.benches.sasrec_parts import Options, Parts, loss_of

WIDTH, LENGTH = 4, 6


@torch.no_grad()
@pytest.mark.parametrize("history", [[2], [1, 3, 2], [4, 0, 1, 1, 3, 2]])
def test_the_block_equals_the_loops_over_a_padded_history(history: list[int]) -> None:
    torch.manual_seed(0)
    model = Parts(Options(width=WIDTH, length=LENGTH), num_items=5).eval()
    num = len(history)
    found = model(torch.tensor([history]), torch.tensor([num]))[0]
    inputs = [torch.zeros(WIDTH)] * (LENGTH - num)
    inputs += [model.embeddings.weight[row] + model.positions.weight[num - 1 - at] for at, row in enumerate(history)]
    for place in range(LENGTH - num, LENGTH):
        normed = layer_norm(inputs[place], (WIDTH,))
        weights = [
            math.exp(float(model.queries(normed) @ model.keys(read)) / math.sqrt(WIDTH)) for read in inputs[: place + 1]
        ]
        summed = torch.zeros(WIDTH)
        for weight, read in zip(weights, inputs, strict=False):
            summed = summed + weight / sum(weights) * model.values(read)
        again = layer_norm(normed + model.mixed(summed), (WIDTH,))
        expected = layer_norm(again + model.second(relu(model.first(again))), (WIDTH,))
        assert torch.allclose(found[place - LENGTH + num], expected, atol=1e-5)


@torch.no_grad()
def test_cosines_are_at_most_1_over_the_temperature() -> None:
    model = Parts(Options(width=WIDTH, length=LENGTH, scores="cosines", temperature=0.2), num_items=5).eval()
    scores = model(torch.tensor([[1, 2, 3]]), torch.tensor([3])) @ model.compared().T
    assert scores.abs().max() <= 5.0 + 1e-4
    assert float(model.compared(torch.tensor([4])).norm()) == pytest.approx(1.0, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_position_is_compared_with_a_share_of_the_negatives(share: float) -> None:
    """All items score alike, so that the loss is the logarithm of how many a position is compared with."""
    model = Parts(Options(width=WIDTH, length=LENGTH, negative_share=share), num_items=3000).eval()
    model.embeddings.weight.zero_()
    found = loss_of(model, [np.array([1, 2, 3])] * 50, torch.arange(1000, 3000))
    assert math.exp(float(found)) == pytest.approx(1 + 2000 * share, rel=0.01)


@torch.no_grad()
def test_once_a_step_an_item_loses_the_same_numbers_wherever_it_is() -> None:
    rows = torch.zeros(50, dtype=torch.int64)
    each, once = (
        Parts(Options(width=WIDTH, length=LENGTH, dropped=how, item_dropout=0.5), num_items=5)
        for how in ("at each place", "once a step")
    )
    for model in (each, once):
        model.begin_step()
    assert len(once.compared(rows).unique(dim=0)) == 1
    assert len(each.compared(rows).unique(dim=0)) > 1
    lost = []
    for _ in range(20):
        once.begin_step()
        lost.append((once.compared(rows[:1]) == 0)[0].tolist())
    assert len(set(map(tuple, lost))) > 1
    once.eval().begin_step()
    assert torch.equal(once.compared(), once.embeddings.weight)
