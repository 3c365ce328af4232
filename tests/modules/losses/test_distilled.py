"""Distillation: the equation, holes, and where it is lowest."""

import numpy as np
import pytest
import torch

import oracles.losses
from rails_ray.modules.losses.distilled import distilled


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("num_items", [1, 2, 9])
def test_it_is_the_equation(num_items: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(num_items)
    estimated, relevance = torch.randn(2, 3, num_items, generator=generator)
    if num_items > 2:
        relevance[1, 2:4] = torch.nan
    found = distilled(estimated, relevance, temperature)
    for line in range(3):
        expected = oracles.losses.distilled(estimated[line].tolist(), relevance[line].tolist(), temperature)
        assert found[line].item() == pytest.approx(expected, abs=1e-5)


def test_it_is_lowest_where_the_estimates_are_the_scores_up_to_a_constant() -> None:
    relevance = torch.randn(4, 20, generator=torch.Generator().manual_seed(0))
    estimated = torch.zeros(4, 20, requires_grad=True)
    optimizer = torch.optim.Adam([estimated], 0.1)
    for _ in range(500):
        optimizer.zero_grad()
        distilled(estimated, relevance, 1.0).sum().backward()
        optimizer.step()
    apart = (estimated - relevance).detach()
    assert np.allclose(apart - apart.mean(dim=1, keepdim=True), 0, atol=0.05)


def test_a_hole_has_no_gradient() -> None:
    estimated = torch.zeros(1, 3, requires_grad=True)
    distilled(estimated, torch.tensor([[0.1, torch.nan, 2.0]]), 1.0).sum().backward()
    assert estimated.grad is not None
    assert estimated.grad[0, 1] == 0
    assert estimated.grad.isfinite().all()
