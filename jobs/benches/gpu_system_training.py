"""Sections `train` and `encode` of `gpu_system`: Ray Train and Ray Data with a GPU, each beside the same on the CPU."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train.torch import TorchConfig
from ray.train.v2.api.config import ScalingConfig

from jobs.benches.encode import prepare
from jobs.benches.gpu_measuring import Case
from jobs.benches.gpu_system_setting import System
from rails_ray import on_ray
from rails_ray.families.config import DataConfig, RunConfig, to_json
from rails_ray.families.dual_encoder.negatives import CrossDeviceNegatives
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes.emoji import emoji_mol
from rails_ray.families.recipes.solar import text_solar
from rails_ray.families.running import Begun, begin
from rails_ray.families.version import Version
from rails_ray.modules import weight_files
from rails_ray.on_ray.cluster import cluster, reserved_device
from rails_ray.on_ray.fitting import fit_to_end
from rails_ray.on_ray.resources import TrainResources
from rails_ray.on_ray.training import TIMEOUT_S, Assignment, Settings, fit_pieces, work
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training.collectives import group

DATA = DataConfig(num_valid=500, num_test=500)
FIRST_LOSSES, MOST_OFF = 5, 1e-2  # losses of the first steps differ by rounding, which the steps before enlarge
NUM_CHUNKS, FEW_CHUNKS, SHARE = 4, 2, 0.25  # chunks of SOLAR, those of a test, and the part of a GPU that each has
RUN = "mixture"
MIXTURE, CHUNKS = "mixture, one worker", "SOLAR, chunks"
TWO_WORKERS, MIXTURE_BY_RAY_TRAIN = "mixture, two workers of Ray Train", "mixture, one worker of Ray Train"


def observed(assignment: Assignment) -> None:
    """Train as the product does, and leave word of what this worker had to train with."""
    work(assignment)
    context = ray.get_runtime_context()
    device = reserved_device()
    seen = {
        "device": device,
        "way": "a task" if context.get_actor_id() is None else "Ray Train",
        "gpu_ids": context.get_accelerator_ids().get("GPU", []),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "exchanged_on": str(group.device()),
        "threads": torch.get_num_threads(),
        "peak_mb": torch.cuda.max_memory_allocated() / 1e6 if device == "cuda" else 0.0,
    }
    place = f"observed/{assignment.run}/{assignment.piece.name or 'run'}-{group.rank()}.json"
    Storage(assignment.storage).write(place, json.dumps(seen).encode())


def train_cases(system: System) -> Iterator[Case]:
    """A mixture with cross-device negatives, and chunks of SOLAR.

    Those on the CPU take four threads at most, and are trained while those on the GPU are, whose process has its own.
    """
    storage = system.storage("train")
    short, long = (mixture(system.sized(num_steps, 5)) for num_steps in (30, 200))
    num_chunks = system.sized(NUM_CHUNKS, FEW_CHUNKS)
    solar = chunks(num_chunks, system.sized(200, 5), system.is_small)
    (on_gpu, _), (on_cpu, _) = system.places()
    quarters, tasks = TrainResources(num_gpus=SHARE), TrainResources(backend="tasks", num_gpus=0)
    train = partial(trained, system, storage=storage)
    with ThreadPoolExecutor(1) as beside, cluster(system.num_cpus):  # without a cluster, the thread ends too
        yield Case({"case": "cluster"}, counted)
        later = [
            beside.submit(train, short, use_gpu=False),
            beside.submit(train, short, use_gpu=False, num_workers=2),
            beside.submit(train, solar, use_gpu=False, num_workers=num_chunks, placing=tasks),
        ]
        first = {
            MIXTURE: partial(train, short, use_gpu=True),
            MIXTURE_BY_RAY_TRAIN: partial(by_ray_train, system, long, storage),
            CHUNKS: partial(train, solar, use_gpu=True, num_workers=num_chunks, placing=quarters),
        }
        losses = dict[str, Sequence[float]]()  # of the GPU's first steps, by the name of the case
        for name, measure in first.items():
            yield Case({"case": name, "on": on_gpu}, partial(kept, measure, name, losses))
        for name, measured in zip((MIXTURE, TWO_WORKERS, CHUNKS), later, strict=True):
            labels = {"case": name, "on": on_cpu, "beside": "the GPU's"}
            yield Case(labels, partial(against, measured.result, losses.get(name)))


def counted() -> dict[str, Any]:
    """Count what Ray finds by itself."""
    found = {name: ray.cluster_resources().get(name, 0) for name in ("CPU", "GPU")}
    return found | ({} if found["GPU"] else {"failed": "Ray must find a GPU"})


def mixture(num_steps: int) -> RunConfig:
    config = replace(emoji_mol(), data=DATA).with_family(negatives=CrossDeviceNegatives())
    return replace(config, training=replace(config.training, num_steps=num_steps))


def chunks(num_chunks: int, num_steps: int, is_small: bool) -> RunConfig:
    """SOLAR on the emoji, all of it in float32, so that losses can be compared."""
    config = replace(text_solar(), data=DATA)
    family: Any = config.family
    encoder = replace(family.encoder, num_chunks=num_chunks, hidden=64 if is_small else family.encoder.hidden)
    training = replace(config.training, num_steps=num_steps, precision="float32")
    return replace(config, training=training).with_family(encoder=encoder)


def trained(
    system: System,
    config: RunConfig,
    *,
    storage: str,
    use_gpu: bool,
    num_workers: int = 1,
    placing: TrainResources = TrainResources(),
) -> dict[str, Any]:
    """Steps a second of a run as the product places it, and what its workers saw."""
    name = f"{config.name}-{'gpu' if use_gpu else 'cpu'}-{num_workers}"
    started = time.perf_counter()
    begun = begin(config, Storage(storage), name)
    settings = Settings(num_workers=num_workers, use_gpu=use_gpu, placing=placing).on_cluster(begun.pieces)
    fit_pieces(begun, settings, worker=observed)
    run = on_ray.train(config, storage, run=name, num_workers=num_workers, use_gpu=use_gpu, placing=placing)
    pieces = [runs.read_piece(Storage(storage), name, piece.name) for piece in begun.pieces]
    return {
        **_steps(system, begun, pieces, use_gpu),
        "wall_s": time.perf_counter() - started,
        "num_at_once": settings.num_at_once,
        "validation": {measure: value for measure, value in run.validation.items() if isinstance(value, float)},
    }


def by_ray_train(system: System, config: RunConfig, storage: str) -> dict[str, Any]:
    """The speed of a group of one, which the product would place in a task: Ray Train with a GPU, and NCCL begun."""
    name = "ray-train"
    started = time.perf_counter()
    begun = begin(config, Storage(storage), name)
    given: dict[str, Any] = {"storage": storage, "run": name, "config": begun.config, "piece": begun.pieces[0]}
    scaling = ScalingConfig(num_workers=1, use_gpu=system.has_gpu)
    backend = TorchConfig(backend="nccl" if system.has_gpu else "gloo", timeout_s=int(TIMEOUT_S))
    fit_to_end(partial(observed, Assignment(**given, checkpoint_s=60.0)), scaling, backend, name)
    row = _steps(system, begun, [runs.read(Storage(storage), name)], system.has_gpu)
    return {**row, "wall_s": time.perf_counter() - started}


def _steps(system: System, begun: Begun, pieces: Sequence[runs.Run], use_gpu: bool) -> dict[str, Any]:
    """The speed of the pieces, and whether their workers were where they should be."""
    store, folder = begun.storage, f"observed/{begun.run}"
    workers = [json.loads(store.read(f"{folder}/{file}")) for file in sorted(store.list(folder))]
    losses = [piece.training["losses"] for piece in pieces]
    seconds = [piece.training["seconds"] for piece in pieces]
    row = {
        "steps": sum(map(len, losses)),
        "seconds": max(seconds),
        "steps_per_s": sum(len(own) / took for own, took in zip(losses, seconds, strict=True)),
        "first_losses": losses[0][:FIRST_LOSSES],
        "last_loss": losses[0][-1],
        "workers": workers,
    }
    expected = "cuda" if use_gpu and system.has_gpu else "cpu"
    if {worker["device"] for worker in workers} != {expected}:
        row["failed"] = f"all workers must train on {expected}"
    elif expected == "cuda" and not all(worker["peak_mb"] for worker in workers):
        row["failed"] = "all workers must have tensors on the GPU"
    return row


def kept(measure: Callable[[], dict[str, Any]], name: str, losses: dict[str, Sequence[float]]) -> dict[str, Any]:
    """Measure, and keep the losses of the first steps."""
    row = measure()
    losses[name] = row["first_losses"]
    return row


def against(measure: Callable[[], dict[str, Any]], losses: Sequence[float] | None) -> dict[str, Any]:
    """Measure, and say how far the first losses are from the GPU's, if it has trained the same."""
    row = measure()
    if losses is None:
        return row
    off = max(abs(one - other) / abs(other) for one, other in zip(losses, row["first_losses"], strict=True))
    row["losses_off"] = off
    if off > MOST_OFF:
        row["failed"] = f"the first losses must agree to {MOST_OFF:g}, got {off:g}"
    return row


def encode_cases(system: System) -> Iterator[Case]:
    """Encode short texts by an actor with a GPU and by tasks on the CPU, publish both, and compare them."""
    storage = system.storage("encode")
    Path(storage).mkdir()
    prepare(Path(storage), system.sized(150_000, 3_000), [])
    config = replace(emoji_mol(), data=DataConfig(folder=str(Path(storage) / "data")))
    random_run(storage, config)
    with cluster(system.num_cpus):
        for place, is_gpu in system.places():
            yield Case({"case": "encode and publish", "on": place}, partial(encoded, system, storage, is_gpu))
            if is_gpu:
                parted = partial(encoded, system, storage, is_gpu, 4)
                yield Case({"case": "encode and publish, a quarter of a GPU each", "on": place}, parted)
        yield Case({"case": "the GPU's items beside the CPU's"}, partial(compared, storage))


def random_run(storage: str, config: RunConfig) -> None:
    """A run whose weights are those that training begins with."""
    runs.write(
        Storage(storage),
        RUN,
        weights=weight_files.to_bytes(DualEncoderTraining.of(config).model()),
        validation=json.dumps({"cutoff_mass": 0.99}).encode(),
        training={"seconds": 0, "losses": []},
        config=to_json(config),
    )


def encoded(system: System, storage: str, use_gpu: bool, on_a_gpu: int = 1) -> dict[str, Any]:
    """Encode and publish.

    Args:
        on_a_gpu: workers that share the GPU.
    """
    num_workers = on_a_gpu if use_gpu else min(4, system.cores)
    version, started = ("gpu" if on_a_gpu == 1 else "parts") if use_gpu else "cpu", time.perf_counter()
    sizes: dict[str, Any] = {"num_shards": 2, "num_workers": num_workers, "part_items": 4096}
    made = on_ray.encode(storage, RUN, version=version, use_gpu=use_gpu, worker_gpus=1 / on_a_gpu, **sizes)
    encoded_s = time.perf_counter() - started
    on_ray.publish(storage, made.version)
    return {
        "items": made.num_items,
        "workers": num_workers,
        "encode_s": encoded_s,
        "publish_s": time.perf_counter() - started - encoded_s,
        "items_per_s": made.num_items / encoded_s,
    }


def compared(storage: str) -> dict[str, Any]:
    """The largest difference between numbers of the items' unit vectors."""
    gpu, cpu = (Version.published(Storage(storage), name).items() for name in ("gpu", "cpu"))
    states: tuple[Any, Any] = gpu.state, cpu.state
    columns = [state.columns() for state in states]
    off = {name: float((columns[0][name] - column).abs().max()) for name, column in columns[1].items()}
    is_same = list(gpu.item_ids) == list(cpu.item_ids)
    row: dict[str, Any] = {"items": len(cpu.item_ids), "off": off}
    if not is_same or off["components"] > 1e-3:
        row["failed"] = f"items must be the same to 1e-3, got {off['components']:g}, ids {'' if is_same else 'un'}equal"
    return row
