import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules import weight_files
from rails_ray.modules.schedule import TrainingConfig, learning_rate_factor
from rails_ray.training.loop import Progress, Validation, train
from rails_ray.training.step import TrainingStep, in_one_process
from support.examples import small_config, small_history_config, window_sampler

CONFIG = TrainingConfig(num_steps=50, batch_size=1, learning_rate=0.1)


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


def ignore(done: int, loss: float) -> None:
    pass


def test_it_learns_and_reports_every_step() -> None:
    step, reports = Distance(), []
    progress = train(
        step, lambda number: Batch(1.0), CONFIG, seed=[0], report=lambda done, loss: reports.append((done, loss))
    )
    assert progress.losses[-1] < 0.01 < progress.losses[0]
    assert reports == list(enumerate(progress.losses, start=1))
    assert progress.validations == []
    assert not step.training


def test_a_loss_that_is_not_finite_ends_it_with_a_sentence() -> None:
    with pytest.raises(FloatingPointError, match=r"must stay finite, got nan in step 2: lower training\.learning_rate"):
        train(Distance(), lambda number: Batch([1.0, math.nan][number]), CONFIG, seed=[0], report=ignore)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({3: math.nan}, "the loss must stay finite, got nan in step 4: lower training.learning_rate"),
        ({2: 1e30}, "the weights must stay finite, got w after step 3: lower training.learning_rate"),
        ({8: 1e30}, "the weights must stay finite, got w after step 9: lower training.learning_rate"),
    ],
    ids=["loss", "weights", "weights of the last step"],
)
def test_the_last_checkpoint_of_a_run_that_broke_is_good(broken: dict[int, float], message: str) -> None:
    class Steep(Distance):
        def forward(self, batch: Batch) -> torch.Tensor:
            loss = super().forward(Batch(1.0)) if math.isfinite(batch.value) else self.w * batch.value
            if batch.value == 1e30:  # a finite loss with an infinite slope
                loss = loss + torch.sqrt(self.w * 0)
            return loss

    saved: list[bytes] = []
    step = Steep()
    config = TrainingConfig(num_steps=9, batch_size=1, learning_rate=0.1)
    with pytest.raises(FloatingPointError, match=message):
        train(
            step,
            lambda number: Batch(broken.get(number, 1.0)),
            config,
            seed=[0],
            report=ignore,
            save=saved.append,
            is_due=lambda: True,
        )
    assert len(saved) == min(broken)
    with pytest.raises(FloatingPointError, match=message):  # where nothing is saved, too
        train(
            Steep(),
            lambda number: Batch(broken.get(number, 1.0)),
            replace(config, num_steps=min(broken) + 1),
            seed=[0],
            report=ignore,
        )
    whole = Distance()
    progress = train(whole, lambda number: Batch(1.0), config, seed=[0], report=ignore, checkpoint=saved[-1])
    assert len(progress.losses) == 9
    assert whole.w.isfinite()


def test_the_loss_is_the_mean_over_workers_and_all_name_the_one_that_is_broken() -> None:
    reports: list[float] = []
    others = iter([[3.0, 2.0], [math.nan, math.inf]])
    with pytest.raises(FloatingPointError, match=r"must stay finite, got nan on worker 1 and inf on worker 2 in step"):
        train(
            Distance(),
            lambda number: Batch(1.0),
            CONFIG,
            seed=[0],
            report=lambda done, loss: reports.append(loss),
            from_each=lambda own: [own, *next(others)],
        )
    assert reports == [(1.0 + 3.0 + 2.0) / 3]


def test_gradients_of_several_batches_are_averaged() -> None:
    """As if one batch held all of them; each is drawn by its own number."""
    values, numbers = [1.0, 3.0, 2.0, -1.0, 4.0, 0.5], []

    class OfAll(Distance):
        def forward(self, batch: Batch) -> torch.Tensor:
            first = 3 * int(batch.value)
            return torch.stack([super(OfAll, self).forward(Batch(value)) for value in values[first : first + 3]]).mean()

    def batch_of(number: int) -> Batch:
        numbers.append(number)
        return Batch(values[number])

    config = TrainingConfig(num_steps=2, batch_size=1, num_batches=3, learning_rate=0.1)
    cut, whole = Distance(), OfAll()
    in_parts = train(cut, batch_of, config, seed=[0], report=ignore)
    at_once = train(whole, lambda number: Batch(number), replace(config, num_batches=1), seed=[0], report=ignore)
    assert in_parts.losses == pytest.approx(at_once.losses)
    assert cut.w.item() == pytest.approx(whole.w.item())
    assert numbers == list(range(6))


@pytest.mark.parametrize(("longest", "expected"), [(0.0, -6.0), (7.0, -6.0), (1.5, -1.5)])
def test_a_gradient_is_cut_to_the_length_that_it_may_have(longest: float, expected: float) -> None:
    """The mean over the batches of a step, not each of them."""
    step = Distance()
    config = TrainingConfig(num_steps=1, batch_size=1, num_batches=2, max_gradient_norm=longest)
    train(step, lambda number: Batch([1.0, 5.0][number]), config, seed=[0], report=ignore)
    assert step.w.grad is not None
    assert step.w.grad.item() == pytest.approx(expected, rel=1e-5)


def test_a_data_parallel_step_exchanges_the_gradients_of_its_last_batch() -> None:
    events: list[str] = []

    class Wrapped(Distance):
        @contextmanager
        def no_sync(self) -> Iterator[None]:
            events.append("alone")
            yield
            events.append("together")

        def forward(self, batch: Batch) -> torch.Tensor:
            events.append("batch")
            return super().forward(batch)

    config = TrainingConfig(num_steps=1, batch_size=1, num_batches=2)
    train(Wrapped(), lambda number: Batch(1.0), config, seed=[0], report=ignore)
    assert events == ["alone", "batch", "together", "batch"]


def test_learning_rate_rises_and_falls_to_zero() -> None:
    config = TrainingConfig(num_steps=100, warmup_fraction=0.1)
    factors = [learning_rate_factor(step, config) for step in range(101)]
    assert factors[0] == pytest.approx(1 / 11)
    assert max(factors) == factors[10] == 1
    assert all(later > earlier for earlier, later in pairwise(factors[:11]))
    assert all(later < earlier for earlier, later in pairwise(factors[10:]))
    assert factors[100] == 0


def test_a_constant_learning_rate_rises_alike_and_stays() -> None:
    falling = TrainingConfig(num_steps=100, warmup_fraction=0.1)
    constant = TrainingConfig(num_steps=100, warmup_fraction=0.1, schedule="constant")
    rising = [learning_rate_factor(step, falling) for step in range(10)]
    assert [learning_rate_factor(step, constant) for step in range(100)] == [*rising, *[1.0] * 90]


@pytest.mark.parametrize(
    ("values", "patience", "is_best", "has_stalled"),
    [
        ([], 1, None, False),
        ([1.0], 1, True, False),
        ([1.0, 2.0], 1, True, False),
        ([1.0, 1.0], 1, False, True),  # no better one
        ([3.0, 2.0, 1.0], 3, False, False),
        ([3.0, 2.0, 2.5, 2.8], 3, False, True),
        ([3.0, 2.0, 2.5, 2.8], 0, False, False),
    ],
)
def test_best_and_stalled(values: list[float], patience: int, is_best: bool | None, has_stalled: bool) -> None:
    progress = Progress(validations=[Validation(step, value) for step, value in enumerate(values)])
    assert progress.has_stalled(patience) == has_stalled
    assert is_best is None or progress.is_best() == is_best


LOOKS = {2: 1.0, 4: 3.0, 6: 2.0, 8: 2.5, 10: 9.0, 12: 0.0}  # what validation says, by the steps done


class Run:
    """Twelve steps of a model with dropout, validated every second step, of which each takes ten seconds."""

    def __init__(self, *, validate_every: int = 2, patience: int = 2, seed: int = 0) -> None:
        config = small_history_config(dropout=0.4)
        torch.manual_seed(99)  # what was drawn before makes no difference
        torch.rand(seed + 1)
        family = DualEncoderTraining.of(config)
        self.step: TrainingStep = family.training_step(family.model(), in_one_process)
        self.config = TrainingConfig(num_steps=12, learning_rate=0.01, validate_every=validate_every, patience=patience)
        self.seed = seed
        self.now = 1000.0 * seed  # clocks of different processes begin anywhere
        self.done = 0
        self.checkpoints: list[bytes] = []
        self.weights: dict[int, dict[str, torch.Tensor]] = {}  # by the steps done
        self.stops_in: Callable[[str], bool] = lambda where: False

    def train(self, checkpoint: bytes | None = None) -> Progress:
        return train(
            self.step,
            self.batch,
            self.config,
            seed=[self.seed, 1],
            report=self.report,
            validate=self.validate,
            measure=lambda: {"steps": float(self.done)},
            checkpoint=checkpoint,
            save=self.save,
            is_due=lambda: self.done % 3 == 0,
            clock=lambda: self.now,
        )

    def batch(self, number: int):
        self.done = number + 1
        self.now += 10
        return window_sampler().batch(number)

    def validate(self) -> float:
        assert not self.step.training
        torch.rand(3)  # what validation draws makes no difference
        return LOOKS[self.done]

    def report(self, done: int, loss: float) -> None:
        self.weights[done] = weight_files.copy(self.step)
        self.stop("report")

    def save(self, checkpoint: bytes) -> None:
        self.checkpoints.append(checkpoint)
        self.stop("save")

    def stop(self, where: str) -> None:
        if self.stops_in(where):
            raise KeyboardInterrupt


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Of models this small a second thread makes a hundredth of the speed, where another process has its core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("where", "done"), [("save", 3), ("report", 4), ("report", 5), ("save", 6), ("report", 8)])
@pytest.mark.parametrize("validate_every", [0, 2])
def test_a_run_that_was_cut_off_ends_as_if_nothing_had_happened(where: str, done: int, validate_every: int) -> None:
    """Bit by bit: weights, losses, and what early stopping remembers; the best weights may be of before the cut."""
    undisturbed = Run(validate_every=validate_every)
    expected = undisturbed.train()

    first = Run(validate_every=validate_every)
    first.stops_in = lambda place: place == where and first.done == done
    with pytest.raises(KeyboardInterrupt):
        first.train()
    second = Run(validate_every=validate_every)
    second.now = 5e6
    found = second.train(first.checkpoints[-1])
    assert min(second.weights) == done // 3 * 3 + 1
    assert found == expected
    assert equal(weight_files.copy(second.step), weight_files.copy(undisturbed.step))
    assert found.seconds == 10 * len(found.losses)  # of the steps that count, and none of the time between


def test_it_goes_on_from_a_finished_runs_checkpoint_without_a_step() -> None:
    run = Run(validate_every=0)
    expected = run.train()
    again = Run(validate_every=0)
    assert again.train(run.checkpoints[-1]) == expected
    assert again.weights == {}
    assert equal(weight_files.copy(again.step), weight_files.copy(run.step))


def test_early_stopping_stops_and_keeps_the_best_weights() -> None:
    run = Run(patience=2)
    progress = run.train()
    assert progress.validations == [Validation(step, LOOKS[step], {"steps": float(step)}) for step in (2, 4, 6, 8)]
    assert len(progress.losses) == 8
    assert equal(weight_files.copy(run.step), run.weights[4])
    assert not equal(run.weights[8], run.weights[4])
    assert not run.step.training


def test_without_patience_it_goes_on_and_keeps_the_best_weights() -> None:
    run = Run(patience=0)
    assert len(run.train().losses) == 12
    assert equal(weight_files.copy(run.step), run.weights[10])


def test_without_a_look_the_last_weights_stay() -> None:
    run = Run(validate_every=0)
    assert run.train().validations == []
    assert equal(weight_files.copy(run.step), run.weights[12])


def test_a_checkpoint_is_saved_whenever_one_is_due() -> None:
    asked, saved = [], []
    options = {"seed": [0], "report": ignore, "is_due": lambda: not asked.append(1) and len(asked) % 20 == 0}
    train(Distance(), lambda number: Batch(1.0), CONFIG, save=lambda checkpoint: saved.append(len(asked)), **options)
    assert len(asked) == 50
    assert saved == [20, 40]


def test_what_a_step_draws_is_its_seeds_and_its_numbers() -> None:
    def drawn(seed: list[int]) -> list[float]:
        draws = []
        train(
            Distance(),
            lambda number: draws.append(torch.rand(()).item()) or Batch(1.0),
            CONFIG,
            seed=seed,
            report=ignore,
        )
        return draws

    first = drawn([3, 0])
    assert first == drawn([3, 0])
    assert len({*first, *drawn([3, 1]), *drawn([4, 0])}) == 3 * len(first)


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (lambda: weight_files.to_bytes(Run().step), "must fit a model of this config, got none for model"),
        (lambda: b"no checkpoint", "must be safetensors, got: "),
    ],
    ids=["weights alone", "no safetensors"],
)
def test_a_checkpoint_that_is_none(checkpoint: Callable[[], bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run().train(checkpoint())


def test_a_checkpoint_of_another_model() -> None:
    run = Run()
    run.train()
    family = DualEncoderTraining.of(small_config("dot product"))
    other = family.training_step(family.model(), in_one_process)
    with pytest.raises(ValueError, match=r"weights must fit a model of this config, got [a-z_.0-9 ]+"):
        train(other, window_sampler().batch, CONFIG, seed=[0], report=ignore, checkpoint=run.checkpoints[0])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_steps", 0, "num_steps must be at least 1, got 0"),
        ("validate_every", -1, "validate_every must be at least 0, got -1"),
        ("patience", -1, "patience must be at least 0, got -1"),
        ("learning_rate", 0.0, "learning_rate must be above 0, got 0.0"),
        ("weight_decay", -1.0, "weight_decay must be at least 0 and finite, got -1.0"),
        ("max_gradient_norm", math.nan, "max_gradient_norm must be at least 0 and finite, got nan"),
        ("warmup_fraction", 1.0, r"warmup_fraction must be in \[0, 1\), got 1.0"),
    ],
)
def test_config_out_of_range(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**{field: value})
