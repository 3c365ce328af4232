"""A piece: one training on its own, and how it is run, without Ray.

A dual encoder has one piece; SOLAR has K, independent of each other. Pieces may also come in order: a quantizer comes
after the encoder whose items it divides. A piece without a gradient fits itself when it is prepared and takes no step.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import nn

from rails_ray.data.batch import Batch
from rails_ray.data.dataset import DataSet
from rails_ray.modules import weight_files
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.storage.filesystem import Storage
from rails_ray.training.collectives.each import from_each
from rails_ray.training.loop import Progress, train


@dataclass(frozen=True, kw_only=True)
class Given:
    """Inputs that a piece is prepared from, on one of its workers.

    run: the run's name; its folder holds what the run fixed before it trained, and the weights of earlier pieces.
    checkpoint: a checkpoint of this piece, to go on from.
    rank: this worker's rank, in 0 .. num_workers - 1.
    device: the worker's, for what preparation computes.
    """

    read: DataSet
    storage: Storage
    run: str
    checkpoint: bytes | None = None
    rank: int = 0
    num_workers: int = 1
    device: str = "cpu"

    @property
    def is_first(self) -> bool:
        return self.rank == 0


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps that the training loop goes through.

    step: takes a batch and returns its loss.
    batch_of: this worker's batch of a step, by its number from 0.
    seed: seeds dropout; it differs between workers.
    rates: share of the learning rate of the parameters whose names in `step` begin so; 1 for all others.
    validate: the value that training compares, the same on all workers; larger is better.
    measure: what is measured beside it, by name, and kept with it.
    begins_trained: whether the step is of use before it is trained. Then it is validated first, and training that makes
        nothing better changes nothing.
    """

    step: nn.Module
    batch_of: Callable[[int], Batch]
    seed: Sequence[int]
    rates: Mapping[str, float] = field(default_factory=dict)
    validate: Callable[[], float] | None = None
    measure: Callable[[], Mapping[str, float]] = dict
    begins_trained: bool = False


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A piece on one of its workers.

    module: its weights are stored when the piece is done.
    report: gives the result, as JSON can hold it, with a `cutoff_mass` or None; only the first worker is asked.
    steps: None if the module is fitted already.
    """

    module: nn.Module
    report: Callable[[Progress], dict[str, Any]]
    steps: Steps | None


@runtime_checkable
class Piece(Protocol):
    """One training on its own. It can be pickled, as it travels to its workers."""

    @property
    def name(self) -> str:
        """Its folder within the run's; "" for the run's own folder, if the run has only this piece."""

    @property
    def after(self) -> Sequence[str]:
        """The names of the pieces that must be done before it, because it reads their weights."""

    @property
    def shares_gradient(self) -> bool:
        """Return whether several workers train it, in a process group; else one worker does, without a group."""

    @property
    def training(self) -> TrainingConfig | None:
        """How it steps; None if it fits itself in `prepare`."""

    def check_workers(self, num_workers: int) -> None:
        """Raises:
        ValueError: if it shares its gradient and so many workers cannot share its batches.
        """

    def prepare(self, given: Given) -> Prepared:
        """The piece on one worker. It depends only on the seed and on what is given."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Result that a piece leaves behind.

    validation: what validation said.
    training: `losses` of each step, `validations` on the way, and the `seconds` that it took.
    """

    weights: bytes
    validation: dict[str, Any]
    training: dict[str, Any]


def steps_of(piece: Piece) -> int:
    """The steps of a piece, as progress counts them: fitting itself is 1."""
    return 1 if piece.training is None else piece.training.num_steps


def fit(
    piece: Piece,
    given: Given,
    *,
    placed: Callable[[nn.Module], nn.Module] = lambda step: step,
    report: Callable[[int, float], None] = lambda done, loss: None,
    save: Callable[[bytes], None] | None = None,
    is_due: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Fitted | None:
    """Run a piece on one of its workers. The first worker gets what the piece leaves behind, the others None.

    Args:
        placed: puts the step on its device and, if the gradient is shared, into its data-parallel wrapper.
        report, save, is_due: as in `loop.train`; only the first worker saves.
    """
    started = clock()
    prepared = piece.prepare(given)
    if prepared.steps is None:
        progress = Progress(seconds=clock() - started)
    else:
        assert piece.training is not None
        progress = train(
            placed(prepared.steps.step),
            prepared.steps.batch_of,
            piece.training,
            seed=prepared.steps.seed,
            rates=prepared.steps.rates,
            report=report,
            validate=prepared.steps.validate,
            measure=prepared.steps.measure,
            begins_trained=prepared.steps.begins_trained,
            checkpoint=given.checkpoint,
            save=save if given.is_first else None,
            is_due=is_due,
            from_each=from_each,
            clock=clock,
        )
    if not given.is_first:
        return None
    return Fitted(
        weights=weight_files.to_bytes(prepared.module), validation=prepared.report(progress), training=asdict(progress)
    )
