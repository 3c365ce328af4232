"""Train the K chunks of SOLAR, each on its own: no message goes from one to another, and none waits for one.

Every chunk is a run of its own, <run>/chunk-NNN, with its own checkpoints and restarts. It is trained by Ray Train, in
a run of one worker without a process group, or by a plain task, which starts in a moment and is for many small chunks;
as many at once as are asked for and as the cluster has room for. What is done is never done again.

Source: SOLAR, Section 3.2.
"""

import json
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError
from ray.train.v2.api.config import ScalingConfig
from ray.train.v2.api.exceptions import TrainingFailedError

from rails_ray import config
from rails_ray.build import family
from rails_ray.build.data import for_data, read_data
from rails_ray.build.solar import SolarFamily
from rails_ray.config import RunConfig
from rails_ray.config.solar import SolarConfig
from rails_ray.errors import TrainingError
from rails_ray.evaluation.report import validate
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.failures import told_plainly
from rails_ray.on_ray.fitting import CHECKPOINT_S, MAX_RESTARTS, Every, fit_to_end, reason_of
from rails_ray.on_ray.placing import Placing
from rails_ray.on_ray.progress import POLL_S, OnProgress, Reporter, latest_of_all, new_board
from rails_ray.storage import codes, runs
from rails_ray.storage.filesystem import Storage, timed_name
from rails_ray.training import state
from rails_ray.training.loop import train as train_loop

MOST_SHOWN = 3  # chunks at work, in a line of progress
LAST_STEPS = 20  # whose mean is the loss that a chunk came to


def train_chunks(
    run_config: RunConfig,
    storage: str,
    *,
    run: str | None = None,
    at_once: int = 2,
    placing: Placing = Placing(),
    use_gpu: bool | None = None,
    checkpoint_s: float = CHECKPOINT_S,
    on_progress: OnProgress | None = None,
) -> runs.Run:
    """Train all chunks of a run and leave it in storage. Of a run that was cut off the missing ones are trained.

    A run that has finished is left as it is and returned. One chunk that fails does not stop the others.

    Only one call at a time may train a run.

    Args:
        storage: root, a local folder or s3://bucket/prefix.
        run: name of the run, the same again to go on with it; by default the recipe's name and the time.
        at_once: chunks that are trained side by side, fewer where there is no room; the result does not depend on it.
        use_gpu: whether chunks reserve GPUs; by default where the cluster has any.
        checkpoint_s: seconds between two checkpoints of a chunk, which are the most work that a crash can lose of it.
        on_progress: called a few times a second, of all chunks together.

    Raises:
        ValueError: if the data, the run's name or the config cannot be used, or there is no room for a chunk.
        StorageError: if storage cannot be written to.
        TrainingError: if chunks fail; it names them. The others are kept.
    """
    if not isinstance(run_config.family, SolarConfig):
        raise ValueError(f"train_chunks is for SOLAR, got recipe {run_config.name}: train trains models of one piece")
    if at_once < 1:
        raise ValueError(f"workers must be at least 1, got {at_once}")
    if checkpoint_s < 0:
        raise ValueError(f"checkpoint_s must be at least 0, got {checkpoint_s}")
    placing = placing.on(ray.cluster_resources(), use_gpu)
    at_once = min(at_once, placing.room([node["Resources"] for node in ray.nodes() if node["Alive"]]))
    store = Storage(storage)
    store.check_writable()
    run = run or timed_name(run_config.name)
    run_config, missing = _begin(store, run, run_config)
    if runs.is_finished(store, run):
        return runs.read(store, run)
    _fit_missing(store, run, run_config, missing, at_once, placing, checkpoint_s, on_progress)
    with told_plainly():
        ray.get(_finish.options(num_cpus=1).remote(str(store), run))
    return runs.read(store, run)


def _begin(store: Storage, run: str, run_config: RunConfig) -> tuple[RunConfig, list[int]]:
    """Reserve the run's name and draw its codes; its whole config, and which chunks are to be trained."""
    data = read_data(run_config, store)  # says what is wrong with it before anything starts
    run_config = for_data(run_config, data)
    drawn = SolarFamily.of(run_config).codes(data.item_ids)
    config_json, digest = config.to_json(run_config), data.digest()
    runs.begin(store, run, config_json, digest)
    if not codes.exist(store, f"runs/{run}"):
        codes.write(store, f"runs/{run}", drawn)
    finished = runs.finished_chunks(store, run)
    missing = [chunk for chunk in range(drawn.codes.shape[1]) if chunk not in finished]
    for chunk in missing:
        runs.begin_chunk(store, run, chunk, config_json, digest)
    return run_config, missing


def _fit_missing(
    store: Storage,
    run: str,
    run_config: RunConfig,
    missing: list[int],
    at_once: int,
    placing: Placing,
    checkpoint_s: float,
    on_progress: OnProgress | None,
) -> None:
    """Raises:
    TrainingError: if chunks fail.
    """
    assert isinstance(run_config.family, SolarConfig)
    num_chunks, num_steps = run_config.family.encoder.num_chunks, run_config.training.num_steps
    board = new_board()
    settings = {
        "config": config.to_json(run_config),
        "storage": str(store),
        "run": run,
        "checkpoint_s": checkpoint_s,
        "board": board,
    }
    done = [chunk for chunk in range(num_chunks) if chunk not in missing]
    waiting, running, failed = deque(missing), dict[ray.ObjectRef[None], int](), dict[int, str]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                chunk = waiting.popleft()
                running[_fit(settings, placing, chunk)] = chunk
            for task in ray.wait(list(running), timeout=POLL_S)[0]:
                chunk = running.pop(task)
                try:
                    ray.get(task)
                except RayError as error:
                    failed[chunk] = reason_of(error)
                else:
                    done.append(chunk)
            if on_progress is not None:
                on_progress(*_seen(latest_of_all(board), num_chunks, num_steps, done, failed))
    finally:
        for task in running:  # interrupted
            ray.cancel(task, force=True)
        ray.kill(board)
    if failed:
        raise TrainingError(_told(failed, run, num_chunks))


def _told(failed: dict[int, str], run: str, num_chunks: int) -> str:
    """Which chunks failed, by the reasons why."""
    chunks_of: dict[str, list[str]] = {}
    for chunk, reason in sorted(failed.items()):
        chunks_of.setdefault(reason, []).append(str(chunk))
    reasons = "; ".join(f"chunk {', '.join(chunks)}: {reason}" for reason, chunks in chunks_of.items())
    return (
        f"all {num_chunks} chunks of run {run!r} must be trained, got {num_chunks - len(failed)}; {reasons}: "
        "train it again under its name for the missing ones"
    )


def _seen(
    latest: Mapping[int, tuple[int, int, str]],
    num_chunks: int,
    num_steps: int,
    done: list[int],
    failed: Mapping[int, str],
) -> tuple[int, int, str]:
    """The progress of all chunks as one, of what the board shows of each."""
    begun = {chunk: shown for chunk, shown in sorted(latest.items()) if chunk not in done}
    steps = sum(steps for steps, _, _ in begun.values()) + num_steps * len(done)
    notes = [f"chunk {chunk} {note}" for chunk, (_, _, note) in begun.items() if chunk not in failed]
    more = [f"{len(notes) - MOST_SHOWN} more"] if len(notes) > MOST_SHOWN else []
    told = ", ".join([*notes[:MOST_SHOWN], *more])
    return steps, num_chunks * num_steps, f"{len(done)} of {num_chunks} chunks" + (told and f": {told}")


def _fit(settings: dict[str, Any], placing: Placing, chunk: int) -> "ray.ObjectRef[None]":
    """Begin to train a chunk, which ends in as many tries as its worker's deaths make of it."""
    own = {**settings, "chunk": chunk, "num_threads": max(round(placing.num_cpus), 1)}
    if placing.backend == "tasks":
        reserved = {"num_cpus": placing.num_cpus, "num_gpus": placing.num_gpus}
        return _train_task.options(**reserved, max_retries=MAX_RESTARTS).remote(own)
    reserved = {"CPU": placing.num_cpus, "GPU": placing.num_gpus}
    scaling = ScalingConfig(num_workers=1, use_gpu=bool(placing.num_gpus), resources_per_worker=reserved)
    return _fit_task.remote(own, scaling)


@ray.remote
def _train_task(settings: dict[str, Any]) -> None:
    _train_chunk(settings)


@ray.remote(num_cpus=0, max_retries=MAX_RESTARTS)
def _fit_task(settings: dict[str, Any], scaling: ScalingConfig) -> None:
    """Wait for a run of Ray Train; in a task, so that it ends with it where this is interrupted.

    Raises:
        TrainingError: if it fails.
    """
    try:
        fit_to_end(_train_chunk, settings, scaling, None, runs.chunk_run(settings["run"], settings["chunk"]))
    except TrainingFailedError as error:
        raise TrainingError(reason_of(error)) from None


def _train_chunk(settings: dict[str, Any]) -> None:
    """What the worker of a chunk does: train it, with checkpoints, and store it as a run."""
    torch.set_num_threads(settings["num_threads"])
    run_config = config.from_json(settings["config"])
    store, number = Storage(settings["storage"]), settings["chunk"]
    run = runs.chunk_run(settings["run"], number)
    data = read_data(run_config, store)
    runs.begin_chunk(store, settings["run"], number, settings["config"], data.digest())  # or others by now
    item_codes = codes.read(store, f"runs/{settings['run']}")
    queries = SolarFamily.of(run_config).training_queries(data)
    chunk = SolarFamily.of(run_config).chunk(number, float(queries.relevant.lengths.mean())).to(reserved_device())
    trained = SolarFamily.of(run_config).chunk_training(chunk, data, item_codes.codes[:, number])
    checkpoint = runs.read_checkpoint(store, run)
    if runs.is_finished(store, run):
        return  # by a predecessor that died after all was done, or late
    progress = train_loop(
        trained.step,
        trained.sampler.batch,
        run_config.training,
        seed=[chunk.seed],
        report=Reporter(
            settings["board"],
            run_config.training.num_steps,
            state.steps_done(checkpoint) if checkpoint else 0,
            number,
        ),
        validate=trained.bucket_recall,
        checkpoint=checkpoint,
        save=partial(runs.write_checkpoint, store, run),
        is_due=Every(settings["checkpoint_s"]),
    )
    came_to = {
        "loss": float(np.mean(progress.losses[-LAST_STEPS:])),
        "bucket_recall": trained.bucket_recall(),
        "cutoff_mass": None,
    }
    runs.write(
        store,
        run,
        weights=state.to_bytes(chunk),
        validation=json.dumps(came_to, indent=1).encode(),
        training={"seconds": progress.seconds, "losses": progress.losses},
        config=settings["config"],
    )


@ray.remote
def _finish(storage: str, run: str) -> None:
    """Validate all chunks together and leave the run as finished."""
    store = Storage(storage)
    of_chunks = {chunk: runs.read_chunk(store, run, chunk) for chunk in runs.finished_chunks(store, run)}
    found = runs.read(store, run)
    run_config = config.from_json(found.config)
    data = read_data(run_config, store)
    runs.begin(store, run, found.config, data.digest())  # or others by now
    model = family(run_config).trained_model(runs.weights(store, found)).to(reserved_device())
    report = validate(model, codes.read(store, f"runs/{run}").state, data.queries["valid"], None)
    runs.finish(
        store,
        run,
        weights_sha256=found.weights_sha256,
        validation=json.dumps(report.to_dict(), indent=1).encode(),
        training={
            "seconds": found.training["seconds"],
            "chunks": [
                {
                    "chunk": chunk,
                    "loss": own.validation["loss"],
                    "bucket_recall": own.validation["bucket_recall"],
                    "seconds": own.training["seconds"],
                }
                for chunk, own in of_chunks.items()
            ],
        },
        config=found.config,
    )
