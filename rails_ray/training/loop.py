"""The training loop: batches in, a trained model out. It knows neither Ray nor how many workers there are."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn


@runtime_checkable
class Batch(Protocol):
    """What a step takes: anything that can be moved to its device."""

    def to(self, device: torch.device | str) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, on what batches and how fast to train.

    Args:
        num_steps: optimiser steps.
        batch_size: queries per step, over all workers.
        num_items: N, items per step: the positives, and the uniform negatives, of all its queries.
        learning_rate: its peak, after the warm-up; from there it falls linearly to 0.
        warmup_fraction: share of the steps over which the learning rate rises from 0, in [0, 1).
        weight_decay: of AdamW.
    """

    num_steps: int = 400
    batch_size: int = 256
    num_items: int = 512
    learning_rate: float = 1e-3
    warmup_fraction: float = 0.05
    weight_decay: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "num_items"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if not 0 <= self.warmup_fraction < 1:
            raise ValueError(f"warmup_fraction must be in [0, 1), got {self.warmup_fraction}")


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Share of the peak learning rate that step `step` (from 0) uses: up over the warm-up, then down to 0."""
    warmup_steps = config.warmup_fraction * config.num_steps
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    return (config.num_steps - step) / (config.num_steps - warmup_steps)


def train(
    step: nn.Module,
    batches: Iterable[Batch],
    config: TrainingConfig,
    report: Callable[[int, float], None],
) -> list[float]:
    """Train the parameters of `step` on `batches`, one optimiser step each.

    Args:
        step: takes a batch and returns its loss; a `TrainingStep`, or a data-parallel wrapper of one.
        report: called after each step with the number of steps done and the loss.

    Returns:
        The loss of each step.

    Raises:
        FloatingPointError: as soon as a loss is not finite.
    """
    optimizer = torch.optim.AdamW(
        [parameter for parameter in step.parameters() if parameter.requires_grad],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: learning_rate_factor(done, config))
    device = next(step.parameters()).device
    step.train()
    losses = []
    for number, batch in enumerate(batches, start=1):
        optimizer.zero_grad(set_to_none=True)
        loss = step(batch.to(device))
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss must stay finite, got {value} in step {number}: lower training.learning_rate"
            )
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(value)
        report(number, value)
    step.eval()
    return losses
