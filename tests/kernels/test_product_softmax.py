"""The softmax over inner products, whose gradient is computed on the way forward, equals the loss over all scores."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oracles.losses
from rails_ray.kernels import product_softmax as kernel
from rails_ray.kernels.product_softmax import product_softmax
from rails_ray.modules.losses.sampled_softmax import sampled_softmax
from support.tried import tried

TAU = 0.3


class Case:
    """A batch of random queries and items; `alone` is one more candidate of each query, its positive."""

    def __init__(self, num_queries: int, num_items: int, seed: int, *, is_alone: bool, is_weighted: bool) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.queries, self.items = self._drawn(num_queries, 3), self._drawn(num_items, 3)
        self.alone = self._drawn(num_queries, 1) if is_alone else None
        num = num_items + is_alone
        self.positive = torch.randint(num, (num_queries,), generator=self.generator)
        if is_alone:
            self.positive = torch.full((num_queries,), num_items)
        self.is_hidden = torch.rand(num_queries, num, generator=self.generator) < 0.3
        self.is_hidden[torch.arange(num_queries), self.positive] = False
        self.log_weights = torch.rand(num_queries, num, generator=self.generator).double() if is_weighted else None
        self.weights = torch.rand(num_queries, generator=self.generator).double() if is_weighted else None

    def _drawn(self, num: int, width: int) -> Tensor:
        return torch.randn(num, width, generator=self.generator).double().requires_grad_()

    @property
    def trained(self) -> list[Tensor]:
        return [self.queries, self.items, *([] if self.alone is None else [self.alone])]

    @property
    def logits(self) -> Tensor:
        scores = self.queries @ self.items.T
        scores = scores if self.alone is None else torch.cat([scores, self.alone], dim=1)
        if self.log_weights is None:
            return scores / TAU
        return scores / TAU + self.log_weights.scatter(1, self.positive[:, None], 0)

    def loss(self) -> Tensor:
        return product_softmax(
            self.queries, self.items, self.alone, self.positive, self.is_hidden, self.log_weights, self.weights, TAU
        )


@tried(50)
@given(st.integers(0, 7), st.integers(1, 9), st.booleans(), st.booleans(), st.integers(1, 40), st.integers(0, 99))
def test_the_loss_and_its_gradient_are_those_over_all_scores(
    num_queries: int, num_items: int, is_alone: bool, is_weighted: bool, numbers: int, seed: int
) -> None:
    case = Case(num_queries, num_items, seed, is_alone=is_alone, is_weighted=is_weighted)
    losses = sampled_softmax(case.logits, case.positive, case.is_hidden)
    directly = losses.sum() if case.weights is None else (losses * case.weights).sum()
    with patch.object(kernel, "NUMBERS", numbers):
        loss = case.loss()
    assert torch.allclose(loss, directly, atol=1e-9)
    expected = torch.autograd.grad(directly, case.trained)
    found = torch.autograd.grad(2.5 * loss, case.trained)
    for own, other in zip(found, expected, strict=True):
        assert torch.allclose(own, 2.5 * other, atol=1e-9)
    if case.weights is None and num_queries:
        of_loops = oracles.losses.sampled_softmax(case.logits.tolist(), case.positive.tolist(), case.is_hidden.tolist())
        assert loss.item() / num_queries == pytest.approx(of_loops)


def test_only_what_is_trained_has_a_gradient() -> None:
    case = Case(4, 5, 0, is_alone=True, is_weighted=True)
    directly = torch.autograd.grad(case.loss(), case.trained)
    case.items = case.items.detach()
    found = torch.autograd.grad(case.loss(), [case.queries, case.alone])
    assert torch.allclose(found[0], directly[0])
    assert torch.allclose(found[1], directly[2])
    loss = case.loss()
    for is_kept in (True, True, False):
        (again,) = torch.autograd.grad(loss, [case.queries], retain_graph=is_kept)
        assert torch.allclose(again, directly[0])
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, [case.queries])
    with torch.no_grad():
        assert not case.loss().requires_grad


def test_logits_far_apart_neither_overflow_nor_vanish() -> None:
    queries = torch.tensor([[400.0], [-400.0]], requires_grad=True)
    items, none = torch.tensor([[1.0], [-1.0]]), torch.zeros(2, 2, dtype=torch.bool)
    loss = product_softmax(queries, items, None, torch.tensor([0, 0]), none, None, None, 1.0)
    assert loss.item() == pytest.approx(800)
    assert torch.autograd.grad(loss, queries)[0].tolist() == [[0], [-2]]
