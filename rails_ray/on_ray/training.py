"""Train a run, piece by piece: as many pieces at once as the caller asks for and the cluster has room for.

A piece that shares its gradient is trained by Ray Train, on data-parallel workers that each have a slice of every
global batch; a single worker needs no process group and is a plain task, which starts in a second where Ray Train takes
eight. Any other piece has one independent worker: in a run of Ray Train without a process group, or in a plain task,
which suits many small pieces.

The first worker of a piece writes a checkpoint to storage every minute or so. If workers die, all workers of the piece
restart from it, and no other piece is affected. If the driver dies, the same command resumes the run. No finished work
is repeated.
"""

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

from rails_ray import counting
from rails_ray.errors import TrainingError
from rails_ray.families import config
from rails_ray.families.config import RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.running import Begun, begin, finish, write_piece
from rails_ray.families.training_family import training_family
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.fitting import CHECKPOINT_S, MAX_RESTARTS, Every, fit_to_end, reason_of
from rails_ray.on_ray.nodes import check_shared
from rails_ray.on_ray.process_groups import ProcessGroupConfig
from rails_ray.on_ray.progress import POLL_S, OnProgress, Reporter, in_task, latest, new_board
from rails_ray.on_ray.resources import TrainResources
from rails_ray.on_ray.run_state import RunState
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training import checkpoints
from rails_ray.training.collectives import group
from rails_ray.training.collectives.first import from_first
from rails_ray.training.piece import Given, Piece, fit, steps_of

TIMEOUT_S = 600.0  # longer than the first worker may be busy alone with validation or a checkpoint


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train a run; `train` describes the fields. They change the result by rounding only, apart from dropout and
    in-batch negatives.

    num_at_once: pieces to train at the same time.
    """

    num_workers: int = 2
    use_gpu: bool | None = None
    checkpoint_s: float = CHECKPOINT_S
    timeout_s: float = TIMEOUT_S
    placing: TrainResources = TrainResources()
    num_at_once: int = 1

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ValueError(f"num_workers must be at least 1, got {self.num_workers}")
        if self.checkpoint_s < 0:
            raise ValueError(f"checkpoint_s must be at least 0, got {self.checkpoint_s}")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s must be above 0, got {self.timeout_s}")

    def on_cluster(self, pieces: Sequence[Piece]) -> "Settings":
        """Make the open choices. Of pieces with one worker each, `num_workers` train at once, or fewer if the cluster
        has less room.

        Raises:
            ValueError: if this number of workers cannot train a piece.
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
class Assignment:
    """The orders for the workers of a piece.

    board: where to report progress; None to report nothing.
    num_threads: threads of the worker; None for Ray Train's own choice.
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
    placing: TrainResources = TrainResources(),
    allow_code: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> runs.Run:
    """Train a model and store it as a run. Call it again with the same name to resume an interrupted run.

    A finished run is returned as it is. A piece that fails does not stop the others.

    Only one call at a time may train a run.

    Args:
        storage: root, a local folder or s3://bucket/prefix.
        run: name of the run. Give the same name again to resume. By default the recipe's name and the time.
        num_workers: data-parallel workers; they change the result by rounding only, apart from dropout and in-batch
            negatives. If each piece has one worker, like SOLAR's chunks: pieces to train at once, or fewer if the
            cluster has less room; this does not change the result.
        use_gpu: one GPU per worker; by default if the cluster has enough of them. If each piece has one worker: by
            default if the cluster has any GPU; `placing` says how many per piece.
        checkpoint_s: seconds between two checkpoints of a piece, and so the most work of it that a crash can lose.
        timeout_s: how long workers wait for one another before all restart from the last checkpoint.
        placing: where to train pieces with one worker each.
        allow_code: as in `local.open`, for configs that are read from storage; what `run_config` names is allowed.
        on_progress: called a few times a second with the progress of all pieces together.

    Raises:
        ValueError: if the data, the run's name, the config or the number of workers is invalid, the cluster has no room
            for a piece, or a node does not find the local folder of storage or data.
        StorageError: if storage cannot be written to.
        TrainingError: if training fails, or a worker reads other data than the run began with. The message names the
            pieces that failed; the others are kept.
    """
    settings = Settings(
        num_workers=num_workers, use_gpu=use_gpu, checkpoint_s=checkpoint_s, timeout_s=timeout_s, placing=placing
    ).on_cluster(training_family(run_config).pieces())
    store = Storage(storage)
    store.check_conditional()
    check_shared(str(store), [run_config.data.folder])
    allowed = config.allowed_here(run_config, allow_code)
    begun = begin(run_config, store, run, allowed)
    if not runs.is_finished(store, begun.run):
        fit_pieces(begun, settings, on_progress)
    if not runs.is_finished(store, begun.run):
        in_task(finish, str(store), begun.run, allowed, reserved_device, on_progress=on_progress)
        if on_progress is not None:
            on_progress(*RunState(begun.pieces, [piece.name for piece in begun.pieces]).seen({}))
    return runs.read(store, begun.run)


def work(assignment: Assignment) -> None:
    """Train a piece on a worker's own batches. The first worker writes checkpoints and stores the piece."""
    if assignment.num_threads is not None:
        torch.set_num_threads(assignment.num_threads)
    store, piece = Storage(assignment.storage), assignment.piece
    own_run, is_first = runs.piece_run(assignment.run, piece.name), group.rank() == 0
    # One worker reads and tells the others: separate reads could find different states.
    if from_first(is_first and runs.is_finished(store, own_run)):
        return  # workers died after the piece had finished
    read = read_data(config.from_json(assignment.config), store)
    # Raises if the data have changed since the run began.
    runs.begin_piece(store, assignment.run, piece.name, assignment.config, read.digest())
    checkpoint, is_finished = from_first(_left(store, own_run) if is_first else (None, False))
    if is_finished:
        return  # a predecessor finished it late
    report = Reporter(
        assignment.board if is_first else None,
        steps_of(piece),
        checkpoints.steps_done(checkpoint) if checkpoint else 0,
        piece.name,
    )
    with counting.shown(report.count):
        fitted = fit(
            piece,
            Given(
                read=read,
                storage=store,
                run=assignment.run,
                checkpoint=checkpoint,
                rank=group.rank(),
                num_workers=group.num_workers(),
                device=reserved_device(),
            ),
            placed=ray.train.torch.prepare_model if group.num_workers() > 1 else _on_reserved_device,
            report=report,
            save=partial(runs.write_checkpoint, store, own_run),
            is_due=Every(assignment.checkpoint_s),
        )
    if fitted is not None:
        write_piece(store, own_run, fitted, assignment.config)


def _left(store: Storage, run: str) -> tuple[bytes | None, bool]:
    """The checkpoint of a piece, and whether it has finished. Read in this order: finishing deletes the checkpoint."""
    return runs.read_checkpoint(store, run), runs.is_finished(store, run)


def _on_reserved_device(step: nn.Module) -> nn.Module:
    return step.to(reserved_device())


def fit_pieces(
    begun: Begun, settings: Settings, on_progress: OnProgress | None = None, *, worker: Worker = work
) -> None:
    """Train the pieces of a run that have not finished.

    Args:
        settings: as `Settings.on_cluster` returns them.
        worker: the function that each worker runs.

    Raises:
        TrainingError: if pieces fail.
    """
    board = None if on_progress is None else new_board()
    assignment_of = partial(
        Assignment,
        storage=str(begun.storage),
        run=begun.run,
        config=begun.config,
        checkpoint_s=settings.checkpoint_s,
        board=board,
    )
    standing = RunState(begun.pieces, _finished(begun))
    running = dict[ray.ObjectRef[None], Piece]()
    try:
        while True:
            for piece in standing.ready()[: settings.num_at_once - len(running)]:
                running[_start(worker, assignment_of(piece=piece), settings)] = piece
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
        raise TrainingError(standing.failure_message(begun.run))


def _finished(begun: Begun) -> list[str]:
    runs_of = {piece.name: runs.piece_run(begun.run, piece.name) for piece in begun.pieces}
    return [name for name, own in runs_of.items() if runs.is_finished(begun.storage, own)]


def _start(worker: Worker, assignment: Assignment, settings: Settings) -> "ray.ObjectRef[None]":
    """Start to train a piece. It is retried if its workers die."""
    placing = settings.placing
    use_gpu = bool(settings.use_gpu)
    if assignment.piece.shares_gradient and settings.num_workers == 1:
        alone = replace(assignment, num_threads=1)  # as a worker of Ray Train
        task = _train_task.options(num_cpus=1, num_gpus=int(use_gpu), max_retries=MAX_RESTARTS)
        return task.remote(worker, alone)
    if assignment.piece.shares_gradient:
        scaling = ScalingConfig(num_workers=settings.num_workers, use_gpu=use_gpu)
        backend = ProcessGroupConfig(backend="nccl" if use_gpu else "gloo", timeout_s=math.ceil(settings.timeout_s))
        return _fit_task.remote(worker, assignment, scaling, backend)
    assignment = replace(assignment, num_threads=max(round(placing.num_cpus), 1))
    if placing.backend == "tasks" or assignment.piece.training is None:  # Ray Train starts two processes more
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
    """Wait for a run of Ray Train. This is a task so that cancelling the task ends the run.

    Raises:
        TrainingError: if the run fails.
    """
    name = runs.piece_run(assignment.run, assignment.piece.name)
    try:
        fit_to_end(partial(worker, assignment), scaling, backend, name)
    except TrainingFailedError as error:
        raise TrainingError(reason_of(error)) from None
