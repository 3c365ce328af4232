"""Train a run: each of its pieces on its own, as many at once as are asked for and as the cluster has room for.

A piece that shares its gradient is trained by Ray Train, on data-parallel workers that each have a slice of every
global batch. Any other is trained by one worker that hears of nobody: in a run of Ray Train without a process group, or
in a plain task, which starts in a moment and is for many small pieces.

The first worker of a piece writes a checkpoint to storage every minute or so. When workers die, all of the piece start
again from it, and no other piece notices; when the driver dies, the same command goes on. What is done is never done
again.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
import ray.train.torch
import torch
from ray.exceptions import RayError
from ray.train.torch import TorchConfig
from ray.train.v2.api.config import ScalingConfig
from ray.train.v2.api.exceptions import TrainingFailedError
from torch import nn

from rails_ray import config
from rails_ray.build import family
from rails_ray.build.data import for_data, read_data
from rails_ray.collectives import group
from rails_ray.collectives.first import from_first
from rails_ray.config import RunConfig
from rails_ray.errors import TrainingError
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.failures import told_plainly
from rails_ray.on_ray.fitting import CHECKPOINT_S, MAX_RESTARTS, Every, fit_to_end, reason_of
from rails_ray.on_ray.placing import Placing
from rails_ray.on_ray.progress import POLL_S, OnProgress, Reporter, latest, new_board
from rails_ray.on_ray.standing import Standing
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage, timed_name
from rails_ray.training import state
from rails_ray.training.piece import Given, Piece, fit, steps_of

TIMEOUT_S = 600.0  # longer than the first worker may be busy alone, with validation or a checkpoint


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is trained, as `train` takes it: none of it changes the result by more than rounding, dropout and
    in-batch negatives aside.

    num_at_once: pieces that are trained side by side.
    """

    num_workers: int = 2
    use_gpu: bool | None = None
    checkpoint_s: float = CHECKPOINT_S
    timeout_s: float = TIMEOUT_S
    placing: Placing = Placing()
    num_at_once: int = 1

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ValueError(f"num_workers must be at least 1, got {self.num_workers}")
        if self.checkpoint_s < 0:
            raise ValueError(f"checkpoint_s must be at least 0, got {self.checkpoint_s}")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s must be above 0, got {self.timeout_s}")

    def on_cluster(self, pieces: Sequence[Piece]) -> "Settings":
        """The same with what it left open. As many pieces that have one worker each are trained at once as workers are
        asked for, fewer if there is no room.

        Raises:
            ValueError: if these workers cannot train a piece.
        """
        resources, found = ray.cluster_resources(), self
        for piece in pieces:
            piece.check_workers(self.num_workers)
        if not all(piece.shares_gradient for piece in pieces):
            placing = self.placing.on(resources, self.use_gpu)
            room = placing.room([node["Resources"] for node in ray.nodes() if node["Alive"]])
            found = replace(found, placing=placing, num_at_once=min(self.num_workers, room))
        if self.use_gpu is None:
            found = replace(found, use_gpu=resources.get("GPU", 0) >= self.num_workers)
        return found


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A run whose name is taken.

    config: as JSON, with all that its data set decides.
    """

    storage: Storage
    run: str
    config: bytes
    pieces: Sequence[Piece]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the workers of a piece are told.

    board: for their progress; None where nobody looks.
    num_threads: of the worker; None for Ray Train's own choice.
    """

    storage: str
    run: str
    config: bytes
    piece: Piece
    checkpoint_s: float
    board: Any = None
    num_threads: int | None = None


Worker = Callable[[Assignment], None]


def train(
    run_config: RunConfig,
    storage: str,
    *,
    run: str | None = None,
    num_workers: int = 2,
    use_gpu: bool | None = None,
    checkpoint_s: float = CHECKPOINT_S,
    timeout_s: float = TIMEOUT_S,
    placing: Placing = Placing(),
    on_progress: OnProgress | None = None,
) -> runs.Run:
    """Train a model and leave it in storage under the name of a run. A run that was cut off goes on.

    A run that has finished is left as it is and returned. A piece that fails does not stop the others.

    Only one call at a time may train a run.

    Args:
        storage: root, a local folder or s3://bucket/prefix.
        run: name of the run, the same again to go on with it; by default the recipe's name and the time.
        num_workers: data-parallel workers; the result depends on it by rounding only, dropout and in-batch negatives
            aside. If each piece has one worker, as SOLAR's chunks have: pieces that are trained side by side, fewer if
            there is no room; the result does not depend on it.
        use_gpu: one GPU per worker; by default if the cluster has enough of them. If each piece has one worker: by
            default if the cluster has any GPU, and as many for each piece as `placing` says.
        checkpoint_s: seconds between two checkpoints of a piece, which are the most work of it that a crash can lose.
        timeout_s: that workers wait for one another before all start again from the last checkpoint.
        placing: of pieces that have one worker each.
        on_progress: called a few times a second, for all pieces together.

    Raises:
        ValueError: if the data, the run's name, the config or the number of workers cannot be used, or the cluster has
            no room for a piece.
        StorageError: if storage cannot be written to.
        TrainingError: if training fails, or a worker reads other data than the run was begun with. The message names
            the pieces that failed; the others are kept.
    """
    settings = Settings(
        num_workers=num_workers, use_gpu=use_gpu, checkpoint_s=checkpoint_s, timeout_s=timeout_s, placing=placing
    ).on_cluster(family(run_config).pieces())
    store = Storage(storage)
    store.check_writable()
    begun = begin(run_config, store, run)
    if not runs.is_finished(store, begun.run):
        fit_pieces(begun, settings, on_progress)
    if not runs.is_finished(store, begun.run):
        with told_plainly():
            ray.get(_finish.options(num_cpus=1).remote(str(store), begun.run))
    return runs.read(store, begun.run)


def begin(run_config: RunConfig, storage: Storage, run: str | None = None) -> Begun:
    """Take a run's name and store what it fixes before it trains; or find that such a run was begun.

    Raises:
        ValueError: if the data, the run's name or the config cannot be used.
    """
    read = read_data(run_config, storage)  # says what is wrong with it before anything starts
    run_config = for_data(run_config, read)
    own = family(run_config)
    pieces, leave = own.pieces(), own.begin(read)
    run = run or timed_name(run_config.name)
    config_json, digest = config.to_json(run_config), read.digest()
    runs.begin(storage, run, config_json, digest, [piece.name for piece in pieces if piece.name])
    leave(storage, run)
    for piece in pieces:
        runs.begin_piece(storage, run, piece.name, config_json, digest)
    return Begun(storage=storage, run=run, config=config_json, pieces=pieces)


def work(assignment: Assignment) -> None:
    """What each worker of a piece does: train on its batches; the first one writes checkpoints and stores the piece."""
    if assignment.num_threads is not None:
        torch.set_num_threads(assignment.num_threads)
    store, piece = Storage(assignment.storage), assignment.piece
    own_run, is_first = runs.piece_run(assignment.run, piece.name), group.rank() == 0
    # One worker reads, and tells the others: each for itself could find another state.
    if from_first(is_first and runs.is_finished(store, own_run)):
        return  # workers died after all was done
    read = read_data(config.from_json(assignment.config), store)
    # Raises if the data have changed since the run was begun.
    runs.begin_piece(store, assignment.run, piece.name, assignment.config, read.digest())
    checkpoint, is_finished = from_first(_left(store, own_run) if is_first else (None, False))
    if is_finished:
        return  # by a predecessor that was late
    fitted = fit(
        piece,
        Given(
            read=read,
            storage=store,
            run=assignment.run,
            checkpoint=checkpoint,
            rank=group.rank(),
            num_workers=group.num_workers(),
        ),
        placed=ray.train.torch.prepare_model if piece.shares_gradient else _on_reserved_device,
        report=Reporter(
            assignment.board if is_first else None,
            steps_of(piece),
            state.steps_done(checkpoint) if checkpoint else 0,
            piece.name,
        ),
        save=partial(runs.write_checkpoint, store, own_run),
        is_due=Every(assignment.checkpoint_s),
    )
    if fitted is not None:
        runs.write(
            store,
            own_run,
            weights=fitted.weights,
            validation=json.dumps(fitted.validation, indent=1).encode(),
            training=fitted.training,
            config=assignment.config,
        )


def _left(store: Storage, run: str) -> tuple[bytes | None, bool]:
    """The checkpoint of a piece, and whether it has finished; in this order, as finishing takes the checkpoint away."""
    return runs.read_checkpoint(store, run), runs.is_finished(store, run)


def _on_reserved_device(step: nn.Module) -> nn.Module:
    return step.to(reserved_device())


def fit_pieces(
    begun: Begun, settings: Settings, on_progress: OnProgress | None = None, *, worker: Worker = work
) -> None:
    """Train the pieces of a run that have not finished.

    Args:
        settings: `on_cluster`.
        worker: what each worker does.

    Raises:
        TrainingError: if pieces fail.
    """
    board = None if on_progress is None else new_board()
    told = partial(
        Assignment,
        storage=str(begun.storage),
        run=begun.run,
        config=begun.config,
        checkpoint_s=settings.checkpoint_s,
        board=board,
    )
    standing = Standing(begun.pieces, _finished(begun))
    running = dict[ray.ObjectRef[None], Piece]()
    try:
        while True:
            for piece in standing.ready()[: settings.num_at_once - len(running)]:
                running[_start(worker, told(piece=piece), settings)] = piece
                standing.waiting.remove(piece)
            if on_progress is not None:
                on_progress(*standing.seen(latest(board)))
            if not running:
                break
            for task in ray.wait(list(running), timeout=POLL_S)[0]:
                piece = running.pop(task)
                try:
                    ray.get(task)
                except RayError as error:
                    standing.failed[piece.name] = reason_of(error)
                else:
                    standing.done.append(piece.name)
    finally:
        for task in running:  # interrupted
            ray.cancel(task, force=True)
        if board is not None:
            ray.kill(board)
    if standing.failed or standing.waiting:
        raise TrainingError(standing.told(begun.run))


def _finished(begun: Begun) -> list[str]:
    runs_of = {piece.name: runs.piece_run(begun.run, piece.name) for piece in begun.pieces}
    return [name for name, own in runs_of.items() if runs.is_finished(begun.storage, own)]


def _start(worker: Worker, assignment: Assignment, settings: Settings) -> "ray.ObjectRef[None]":
    """Begin to train a piece, which ends in as many tries as its workers' deaths make of it."""
    placing = settings.placing
    if assignment.piece.shares_gradient:
        use_gpu = bool(settings.use_gpu)
        scaling = ScalingConfig(num_workers=settings.num_workers, use_gpu=use_gpu)
        backend = TorchConfig(backend="nccl" if use_gpu else "gloo", timeout_s=math.ceil(settings.timeout_s))
        return _fit_task.remote(worker, assignment, scaling, backend)
    assignment = replace(assignment, num_threads=max(round(placing.num_cpus), 1))
    if placing.backend == "tasks":
        reserved = {"num_cpus": placing.num_cpus, "num_gpus": placing.num_gpus}
        return _train_task.options(**reserved, max_retries=MAX_RESTARTS).remote(worker, assignment)
    reserved = {"CPU": placing.num_cpus, "GPU": placing.num_gpus}
    scaling = ScalingConfig(num_workers=1, use_gpu=bool(placing.num_gpus), resources_per_worker=reserved)
    return _fit_task.remote(worker, assignment, scaling, None)


@ray.remote
def _train_task(worker: Worker, assignment: Assignment) -> None:
    worker(assignment)


@ray.remote(num_cpus=0, max_retries=MAX_RESTARTS)
def _fit_task(worker: Worker, assignment: Assignment, scaling: ScalingConfig, backend: TorchConfig | None) -> None:
    """Wait for a run of Ray Train; in a task, so that it ends with it where this is interrupted.

    Raises:
        TrainingError: if it fails.
    """
    name = runs.piece_run(assignment.run, assignment.piece.name)
    try:
        fit_to_end(partial(worker, assignment), scaling, backend, name)
    except TrainingFailedError as error:
        raise TrainingError(reason_of(error)) from None


@ray.remote
def _finish(storage: str, run: str) -> None:
    """Validate all pieces together and leave the run as finished."""
    store = Storage(storage)
    found = runs.read(store, run)
    run_config = config.from_json(found.config)
    read, own = read_data(run_config, store), family(run_config)
    runs.begin(store, run, found.config, read.digest(), runs.pieces(store, run))  # raises if they are others by now
    model = own.trained_model(runs.weights(store, found)).to(reserved_device())
    report = own.validation(store, run, model, read)
    came_to = []
    for piece in runs.pieces(store, run):
        of_piece = runs.read_piece(store, run, piece)
        measured = {name: value for name, value in of_piece.validation.items() if name != "cutoff_mass"}
        came_to.append({"piece": piece, **measured, "seconds": of_piece.training["seconds"]})
    runs.finish(
        store,
        run,
        weights_sha256=found.weights_sha256,
        validation=json.dumps(report.to_dict(), indent=1).encode(),
        training={"seconds": found.training["seconds"], "pieces": came_to},
        config=found.config,
    )
