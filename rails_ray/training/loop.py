"""The training loop: batches in, a trained model out. It knows neither Ray nor how many workers there are.

A step draws all its randomness from the seed and its number. So weights, optimiser and the number of steps done are
the whole state of a run, and an interrupted run goes on from its last checkpoint as if nothing had happened.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from rails_ray.data.batch import Batch
from rails_ray.modules import weight_files
from rails_ray.modules.schedule import TrainingConfig, learning_rate_factor
from rails_ray.training import checkpoints, memory

NO_RATES: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Validation:
    """Result of a validation after `step` steps; a larger value is better.

    measures: what else was measured then, by name.
    """

    step: int
    value: float
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Progress:
    """
    losses: the loss of each step done.
    validations: all so far, in order.
    seconds: the time that training took, validation included.
    """

    losses: list[float] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    seconds: float = 0.0

    def is_best(self) -> bool:
        """Return whether the last validation is better than all before it."""
        values = [validation.value for validation in self.validations]
        return values[-1] > max(values[:-1], default=-math.inf)

    def has_stalled(self, patience: int) -> bool:
        """Return whether `patience` validations have passed without a better one."""
        values = [validation.value for validation in self.validations]
        return 0 < patience < len(values) - values.index(max(values)) if values else False


def train(
    step: nn.Module,
    batch_of: Callable[[int], Batch],
    config: TrainingConfig,
    *,
    seed: Sequence[int],
    report: Callable[[int, float], None],
    rates: Mapping[str, float] = NO_RATES,
    validate: Callable[[], float] | None = None,
    measure: Callable[[], Mapping[str, float]] = dict,
    begins_trained: bool = False,
    checkpoint: bytes | None = None,
    save: Callable[[bytes], None] | None = None,
    is_due: Callable[[], bool] = lambda: False,
    from_each: Callable[[float], list[float]] = lambda value: [value],
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Train the parameters of `step`, one optimiser step for every `num_batches` batches.

    Args:
        step: takes a batch and returns its loss; a `TrainingStep`, or a data-parallel wrapper of one.
        batch_of: a batch, by its number from 0.
        seed: seeds dropout; it differs between workers.
        report: called after each step with the number of steps done and the loss.
        rates: share of the learning rate of the parameters whose names begin so; 1 for all others.
        validate: called every `validate_every` steps, in evaluation mode; it must return the same value on all workers.
        measure: called after `validate`, for what it says beside.
        begins_trained: whether to validate before the first step, too.
        checkpoint: a checkpoint of the same run, to go on from.
        save: takes a checkpoint whenever `is_due` says so.
        from_each: gives every worker's value, by rank; the loss of a step is their mean.

    Raises:
        FloatingPointError: on all workers, as soon as the loss of one is not finite, or what it is taken of, or the
            weights where a checkpoint is due. The last checkpoint that was saved is good.
        ValueError: if the checkpoint does not fit the step.
    """
    memory.keep_freed()
    plain: nn.Module = getattr(step, "module", step)  # without a data-parallel wrapper
    optimizer = torch.optim.AdamW(
        _groups(plain, rates), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    progress, best = Progress(), None
    if checkpoint is not None:
        facts, best = checkpoints.load_checkpoint(plain, optimizer, checkpoint)
        validations = [Validation(**validation) for validation in facts["validations"]]
        progress = Progress(facts["losses"], validations, facts["seconds"])
    elif validate and config.validate_every and begins_trained:
        step.eval()
        progress.validations.append(Validation(0, validate(), measure()))
        best = weight_files.copy(plain)
    device = next(step.parameters()).device
    started = clock() - progress.seconds
    step.train()
    while len(progress.losses) < config.num_steps and not progress.has_stalled(config.patience):
        number = len(progress.losses)
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * config.learning_rate * learning_rate_factor(number, config)
        optimizer.zero_grad(set_to_none=True)
        values = []
        for place in range(config.num_batches):
            batch_number = number * config.num_batches + place
            seed_step(seed, batch_number)
            with _alone(step) if place < config.num_batches - 1 else nullcontext():
                try:
                    loss = step(batch_of(batch_number).to(device))
                except FloatingPointError as error:
                    raise FloatingPointError(f"step {number + 1}: {error}") from None
                values.append(_mean_if_finite(from_each(loss.item()), number + 1))
                (loss / config.num_batches).backward()
        if config.max_gradient_norm:
            nn.utils.clip_grad_norm_(plain.parameters(), config.max_gradient_norm)
        optimizer.step()
        progress.losses.append(math.fsum(values) / len(values))
        if validate and config.validate_every and len(progress.losses) % config.validate_every == 0:
            step.eval()
            progress.validations.append(Validation(len(progress.losses), validate(), measure()))
            step.train()
            if progress.is_best():
                best = weight_files.copy(plain)
        report(len(progress.losses), progress.losses[-1])
        if save is not None and is_due():
            _check_finite(plain, len(progress.losses))
            progress.seconds = clock() - started
            save(checkpoints.checkpoint_to_bytes(plain, optimizer, asdict(progress), best))
    if best is not None:
        plain.load_state_dict(best)
    _check_finite(plain, len(progress.losses))
    step.eval()
    progress.seconds = clock() - started
    return progress


def _alone(step: nn.Module) -> AbstractContextManager[None]:
    """Within it a data-parallel wrapper leaves gradients with their worker: the last batch of a step exchanges them."""
    alone: Callable[[], AbstractContextManager[None]] = getattr(step, "no_sync", nullcontext)
    return alone()


def _groups(step: nn.Module, rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Group the parameters that an optimiser trains, in the order of the module: neighbours of the same rate
    together."""

    def rate_of(named: tuple[str, nn.Parameter]) -> float:
        return next((rate for prefix, rate in rates.items() if named[0].startswith(prefix)), 1.0)

    trained = [named for named in step.named_parameters() if named[1].requires_grad]
    return [
        {"params": [parameter for _, parameter in group], "rate": rate} for rate, group in groupby(trained, rate_of)
    ]


def _mean_if_finite(losses: list[float], step: int) -> float:
    broken = [f"{loss} on worker {worker}" for worker, loss in enumerate(losses) if not math.isfinite(loss)]
    if broken:
        found = " and ".join(broken) if len(losses) > 1 else str(losses[0])
        raise FloatingPointError(f"the loss must stay finite, got {found} in step {step}: lower training.learning_rate")
    return math.fsum(losses) / len(losses)


def _check_finite(step: nn.Module, number: int) -> None:
    """A finite loss may leave weights that are not: the last checkpoint, to go on from, must have been good."""
    broken = [name for name, parameter in step.named_parameters() if not parameter.isfinite().all()]
    if broken:
        raise FloatingPointError(
            f"the weights must stay finite, got {broken[0]} after step {number}: lower training.learning_rate"
        )


def seed_step(seed: Sequence[int], number: int) -> None:
    """Make what a step draws (dropout) depend on its number alone."""
    (state_of_step,) = np.random.SeedSequence([*seed, number]).generate_state(1, np.uint64)
    torch.manual_seed(int(state_of_step >> np.uint64(1)))
