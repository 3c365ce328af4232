"""Train a run with Ray Train: data-parallel workers, each on its slice of every global batch."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import FailureConfig, ScalingConfig
from ray.train import RunConfig as RayRunConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from rails_ray import build, config
from rails_ray.collectives.mean import mean_over_workers
from rails_ray.config import RunConfig
from rails_ray.data.batch import PairSampler
from rails_ray.errors import TrainingError
from rails_ray.evaluation.ranking import encode_items
from rails_ray.evaluation.report import validate
from rails_ray.on_ray.failures import own_cause
from rails_ray.on_ray.progress import OnProgress, ProgressBoard, Reporter, watch
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training import state
from rails_ray.training.loop import train as train_loop


def train(
    run_config: RunConfig,
    storage: str,
    *,
    run: str | None = None,
    num_workers: int = 2,
    use_gpu: bool | None = None,
    on_progress: OnProgress | None = None,
) -> runs.Run:
    """Train a model and leave it in storage under the name of a run.

    Args:
        storage: root folder.
        run: name of the run; by default the recipe's name and the time.
        num_workers: data-parallel workers; the result depends on it by rounding only, dropout aside.
        use_gpu: one GPU per worker; by default where the cluster has enough of them.
        on_progress: called a few times a second.

    Raises:
        ValueError: if the data, the run's name or the number of workers cannot be used.
        TrainingError: if training fails.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers must be at least 1, got {num_workers}")
    if run_config.training.batch_size % num_workers:
        raise ValueError(
            f"training.batch_size must be a multiple of the {num_workers} workers, got {run_config.training.batch_size}"
        )
    store = Storage(storage)
    if run_config.data.folder is not None:  # workers run in folders of their own
        folder = str(Path(run_config.data.folder).expanduser().resolve())
        run_config = replace(run_config, data=replace(run_config.data, folder=folder))
    run = run or f"{run_config.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    runs.check_new(store, run)
    build.data(run_config.data, store)  # says what is wrong with it before anything starts
    if use_gpu is None:
        use_gpu = ray.cluster_resources().get("GPU", 0) >= num_workers
    board = ProgressBoard.remote() if on_progress else None  # type: ignore[attr-defined]
    trainer = TorchTrainer(
        _train_worker,
        train_loop_config={
            "config": config.to_json(run_config),
            "storage": str(store),
            "run": run,
            "board": board,
        },
        scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=use_gpu),
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        run_config=RayRunConfig(
            name="ray_train",
            storage_path=f"{store}/runs/{run}",
            # Workers for which there is no room are asked for so often, a minute each, before that is told.
            failure_config=FailureConfig(controller_failure_limit=2),  # type: ignore[call-arg]
        ),
    )
    try:
        if on_progress is None:
            trainer.fit()
        else:
            watch(trainer.fit, board, on_progress)
    except TrainingFailedError as error:
        raise TrainingError(f"training of run {run!r} must end with a model, got: {_reason(error)}") from error
    finally:
        if board is not None:
            ray.kill(board)
    return runs.read(store, run)


def _train_worker(settings: dict[str, Any]) -> None:
    """What each worker does: train on its slices; the first one then validates and stores the model."""
    context = ray.train.get_context()
    run_config = config.from_json(settings["config"])
    store = Storage(settings["storage"])
    data = build.data(run_config.data, store)
    model = build.model(run_config)
    item_features = model.features(data.item_texts)
    sampler = PairSampler(
        data.queries["train"],
        model.features(data.queries["train"].texts),
        item_features,
        batch_size=run_config.training.batch_size,
        num_items=run_config.training.num_items,
        seed=run_config.seed,
        rank=context.get_world_rank(),
        num_workers=context.get_world_size(),
    )
    is_first = context.get_world_rank() == 0
    torch.manual_seed(run_config.seed + context.get_world_rank())  # of dropout; the weights are drawn
    step = ray.train.torch.prepare_model(build.training_step(model, run_config, mean_over_workers))
    started = time.monotonic()
    losses = train_loop(
        step,
        sampler.batches(0, run_config.training.num_steps),
        run_config.training,
        report=Reporter(settings["board"] if is_first else None, run_config.training.num_steps),
    )
    seconds = time.monotonic() - started
    if is_first:
        model.eval()
        items = encode_items(model, item_features)
        report = validate(model, items, data.queries["valid"], build.has_trained_temperature(run_config))
        runs.write(
            store,
            settings["run"],
            weights=state.to_bytes(model),
            validation=json.dumps(report.to_dict(), indent=1).encode(),
            training=json.dumps({"seconds": seconds, "losses": losses}).encode(),
            config=settings["config"],
        )


def _reason(error: BaseException) -> str:
    """What went wrong on a worker, in a line."""
    for failure in (*getattr(error, "worker_failures", {}).values(), error):
        cause = own_cause(failure)
        if cause is not None:
            return str(cause)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
