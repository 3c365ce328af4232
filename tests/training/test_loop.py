import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from rails_ray.training.loop import TrainingConfig, learning_rate_factor, train

CONFIG = TrainingConfig(num_steps=50, batch_size=1, num_items=1, learning_rate=0.1)


class Batch:
    """A number, as a batch."""

    def __init__(self, value: float) -> None:
        self.value = value

    def to(self, device: object) -> "Batch":
        return self


class Distance(nn.Module):
    """(w - value)^2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Batch) -> torch.Tensor:
        assert self.training
        return (self.w - batch.value) ** 2


def test_it_learns_and_reports_every_step() -> None:
    step, reports = Distance(), []
    losses = train(step, [Batch(1.0)] * 50, CONFIG, lambda done, loss: reports.append((done, loss)))
    assert losses[-1] < 0.01 < losses[0]
    assert reports == list(enumerate(losses, start=1))
    assert not step.training


def test_a_loss_that_is_not_finite_ends_it_with_a_sentence() -> None:
    batches = [Batch(1.0), Batch(math.nan)]
    with pytest.raises(FloatingPointError, match=r"must stay finite, got nan in step 2: lower training\.learning_rate"):
        train(Distance(), batches, CONFIG, lambda done, loss: None)


def test_learning_rate_rises_and_falls_to_zero() -> None:
    config = TrainingConfig(num_steps=100, warmup_fraction=0.1)
    factors = [learning_rate_factor(step, config) for step in range(101)]
    assert factors[0] == pytest.approx(1 / 11)
    assert max(factors) == factors[10] == 1
    assert all(later > earlier for earlier, later in pairwise(factors[:11]))
    assert all(later < earlier for earlier, later in pairwise(factors[10:]))
    assert factors[100] == 0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_steps", 0, "num_steps must be at least 1, got 0"),
        ("learning_rate", 0.0, "learning_rate must be above 0, got 0.0"),
        ("warmup_fraction", 1.0, r"warmup_fraction must be in \[0, 1\), got 1.0"),
    ],
)
def test_config_out_of_range(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**{field: value})
