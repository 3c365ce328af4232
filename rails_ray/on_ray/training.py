"""Train a run with Ray Train: data-parallel workers, each on its slice of every global batch.

The first worker writes a checkpoint to storage every minute or so. When workers die, all of them start again from it;
when the driver dies, the same command goes on from it.
"""

import json
import math
from dataclasses import asdict
from functools import partial
from typing import Any

import ray
import ray.train
import ray.train.torch
from ray.train.torch import TorchConfig
from ray.train.v2.api.config import ScalingConfig
from ray.train.v2.api.exceptions import TrainingFailedError

from rails_ray import config
from rails_ray.build import family
from rails_ray.build.data import for_data, read_data
from rails_ray.build.dual_encoder import DualEncoderFamily
from rails_ray.collectives.each import from_each
from rails_ray.collectives.first import from_first
from rails_ray.collectives.mean import mean_over_workers
from rails_ray.config import RunConfig
from rails_ray.config.solar import SolarConfig
from rails_ray.errors import TrainingError
from rails_ray.evaluation.ranking import encode_items
from rails_ray.evaluation.report import validate, validation_mrr
from rails_ray.on_ray.chunks import train_chunks
from rails_ray.on_ray.fitting import CHECKPOINT_S, Every, fit_to_end, reason_of
from rails_ray.on_ray.placing import Placing
from rails_ray.on_ray.progress import OnProgress, Reporter, latest, new_board, watch
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage, timed_name
from rails_ray.training import state
from rails_ray.training.loop import train as train_loop

TIMEOUT_S = 600.0  # longer than the first worker may be busy alone, with validation or a checkpoint


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

    A run that has finished is left as it is and returned.

    Only one call at a time may train a run.

    Args:
        storage: root, a local folder or s3://bucket/prefix.
        run: name of the run, the same again to go on with it; by default the recipe's name and the time.
        num_workers: data-parallel workers; the result depends on it by rounding only, dropout and in-batch negatives
            aside. Of SOLAR, chunks that are trained side by side.
        use_gpu: one GPU per worker; by default where the cluster has enough of them. Of SOLAR, by default where it has
            any, and as many for each chunk as `placing` says.
        checkpoint_s: seconds between two checkpoints, which are the most work that a crash can lose.
        timeout_s: that workers wait for one another before all start again from the last checkpoint.
        placing: of the chunks of SOLAR; `chunks.train_chunks` trains them.
        on_progress: called a few times a second.

    Raises:
        ValueError: if the data, the run's name or the number of workers cannot be used.
        StorageError: if storage cannot be written to.
        TrainingError: if training fails, or a worker reads other data than the run was begun with.
    """
    if isinstance(run_config.family, SolarConfig):
        return train_chunks(
            run_config,
            storage,
            run=run,
            at_once=num_workers,
            placing=placing,
            use_gpu=use_gpu,
            checkpoint_s=checkpoint_s,
            on_progress=on_progress,
        )
    if num_workers < 1:
        raise ValueError(f"num_workers must be at least 1, got {num_workers}")
    sizes, negatives = run_config.training, run_config.family.negatives
    if negatives.kind == "uniform" and sizes.batch_size % num_workers:
        raise ValueError(f"training.batch_size must be a multiple of the {num_workers} workers, got {sizes.batch_size}")
    if checkpoint_s < 0:
        raise ValueError(f"checkpoint_s must be at least 0, got {checkpoint_s}")
    if timeout_s <= 0:
        raise ValueError(f"timeout_s must be above 0, got {timeout_s}")
    store = Storage(storage)
    store.check_writable()
    data = read_data(run_config, store)  # says what is wrong with it before anything starts
    run_config = for_data(run_config, data)
    run = run or timed_name(run_config.name)
    config_json = config.to_json(run_config)
    runs.begin(store, run, config_json, data.digest())
    if runs.is_finished(store, run):
        return runs.read(store, run)
    if use_gpu is None:
        use_gpu = ray.cluster_resources().get("GPU", 0) >= num_workers
    board = new_board() if on_progress else None
    settings = {
        "config": config_json,
        "storage": str(store),
        "run": run,
        "checkpoint_s": checkpoint_s,
        "board": board,
    }
    scaling = ScalingConfig(num_workers=num_workers, use_gpu=use_gpu)
    backend = TorchConfig(backend="nccl" if use_gpu else "gloo", timeout_s=math.ceil(timeout_s))
    fit = partial(fit_to_end, _train_worker, settings, scaling, backend)
    try:
        if on_progress is None:
            fit()
        else:
            watch(fit, partial(latest, board), on_progress)
    except TrainingFailedError as error:
        raise TrainingError(f"training of run {run!r} must end with a model, got: {reason_of(error)}") from error
    finally:
        if board is not None:
            ray.kill(board)
    return runs.read(store, run)


def _train_worker(settings: dict[str, Any]) -> None:
    """What each worker does: train on its slices; the first one writes checkpoints, validates and stores the model."""
    context = ray.train.get_context()
    rank, is_first = context.get_world_rank(), context.get_world_rank() == 0
    run_config = config.from_json(settings["config"])
    store, run = Storage(settings["storage"]), settings["run"]
    # One worker reads, and tells the others: each for itself could find another state.
    if from_first(is_first and runs.is_finished(store, run)):
        return  # workers died after all was done
    data = read_data(run_config, store)
    runs.begin(store, run, settings["config"], data.digest())  # raises if the data have changed since the run was begun
    checkpoint = from_first(runs.read_checkpoint(store, run) if is_first else None)
    model = DualEncoderFamily.of(run_config).model()
    if checkpoint is not None:
        state.load_model(model, checkpoint)
    else:
        DualEncoderFamily.of(run_config).learn_tokens(model, data, is_first=is_first, from_first=from_first)
    sampler = DualEncoderFamily.of(run_config).sampler(model, data, rank, context.get_world_size())
    step = ray.train.torch.prepare_model(DualEncoderFamily.of(run_config).training_step(model, mean_over_workers))
    item_features, held_out = model.item_features(data.item_inputs), data.queries["valid"]

    progress = train_loop(
        step,
        sampler.batch,
        run_config.training,
        seed=[run_config.seed, rank],
        report=Reporter(
            settings["board"] if is_first else None,
            run_config.training.num_steps,
            state.steps_done(checkpoint) if checkpoint else 0,
        ),
        validate=lambda: from_first(validation_mrr(model, item_features, held_out) if is_first else 0.0),
        checkpoint=checkpoint,
        save=partial(runs.write_checkpoint, store, run) if is_first else None,
        is_due=Every(settings["checkpoint_s"]),
        from_each=from_each,
    )
    if is_first:
        items = encode_items(model, item_features)
        offers = family(run_config).offers
        distribution = offers.distribution() if offers.has_trained_temperature else None
        report = validate(model, items, held_out, distribution)
        runs.write(
            store,
            run,
            weights=state.to_bytes(model),
            validation=json.dumps(report.to_dict(), indent=1).encode(),
            training=asdict(progress),
            config=settings["config"],
        )
