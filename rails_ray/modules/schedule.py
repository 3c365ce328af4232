"""How long, on what batches and how fast to train."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

LEAST = {
    "num_steps": 1,
    "batch_size": 1,
    "num_batches": 1,
    "validate_every": 0,
    "patience": 0,
}  # of `TrainingConfig`'s fields
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": None}
SCHEDULES = ("linear", "constant")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, on what batches and how fast to train.

    Args:
        num_steps: optimiser steps to take.
        batch_size: queries per step over all workers; a model of histories counts histories, each with many queries.
        num_batches: batches of `batch_size` whose gradients are averaged in a step, each with negatives of its own.
        precision: dtype of the encoder's products in training; `auto` is bfloat16 on GPUs and float32 elsewhere.
        learning_rate: peak learning rate, at the end of the warm-up.
        schedule: learning rate after the warm-up: `linear` falls to 0; `constant` is for runs that `patience` ends.
        warmup_fraction: share of the steps over which the learning rate rises from 0, in [0, 1).
        weight_decay: weight decay of AdamW.
        max_gradient_norm: a step's gradient that is longer is scaled down to this length; 0 for none.
        validate_every: steps between two validations; 0 validates once, at the end.
        patience: training stops after so many validations without a better one; 0 never stops it early. Of several
            validations the weights of the best are kept.
    """

    num_steps: int = 400
    batch_size: int = 256
    num_batches: int = 1
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    learning_rate: float = 1e-3
    schedule: Literal["linear", "constant"] = "linear"
    warmup_fraction: float = 0.05
    weight_decay: float = 1e-3
    max_gradient_norm: float = 0.0
    validate_every: int = 0
    patience: int = 0

    def __post_init__(self) -> None:
        for name, number in LEAST.items():
            if getattr(self, name) < number:
                raise ValueError(f"{name} must be at least {number}, got {getattr(self, name)}")
        for name in ("weight_decay", "max_gradient_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if not 0 <= self.warmup_fraction < 1:
            raise ValueError(f"warmup_fraction must be in [0, 1), got {self.warmup_fraction}")


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Share of the peak learning rate that step `step` (from 0) uses: up over the warm-up, then by `schedule`."""
    warmup_steps = config.warmup_fraction * config.num_steps
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if config.schedule == "constant":
        return 1.0
    return (config.num_steps - step) / (config.num_steps - warmup_steps)
