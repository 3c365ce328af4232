"""Encoding on Ray: how much of a plain loop's speed is left, and does memory grow with the corpus?

The same model, items, parts and bytes, encoded and written to a local folder: once by a loop of torch and pyarrow in a
process of its own, which knows neither Ray nor checksums, and once by `on_ray.encode`, with checksums, fsync and
records. Items lie in files of 50,000 rows, for the loop in memory before the clock starts. The vectors are 64 float32
wide. Two models: the two-tower of the emoji recipe on short texts, and an embedding per item (256 MB of weights for a
million items, which each worker must load, and next to no arithmetic), the worst that can be asked.

    python -m jobs.benches.encode [--num-items 1000000 3000000 10000000] [--workers 2]

A yes is at least 70% of the loop's items per second for texts and 50% for the look-up, at 10 million items at least
90% of the speed at one million, the driver below 500 MB, and each worker below 1.5 GB. The cluster is up before the
clock starts; the first execution on it is cold: its workers import and load. Memory is resident memory, sampled twice a
second in driver and workers; the curve lies in the row.

At the end of each size, driver and cluster are killed with SIGKILL when 60% of the parts are written. A yes is that the
same command, on a new cluster, ends with the bytes of the uninterrupted version.
"""

import hashlib
import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import tyro
from rich.console import Console

from jobs.benches.record import Record
from rails_ray.data.corpus import item_inputs
from rails_ray.families import config
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import read_corpus
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import training_family
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.storage import parquet, parts, runs
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage

RUNS = {"two-tower": "text-dot", "look-up": "ml1m-sasrec"}  # and the recipe of each
FILE_ROWS = 50_000
PART_ITEMS = 16_384
SAMPLE_S = 0.5
KILL_AT = 0.6  # of the parts
VERSION = "v"
CURVE_POINTS = 60
MB = 2**20


@dataclass(frozen=True)
class Arguments:
    """
    Args:
        num_items: sizes of the corpus, each in a data set of its own.
        look_up_items: largest corpus for the model with a row for each item.
    """

    num_items: tuple[int, ...] = (1_000_000,)
    look_up_items: int = 1_000_000
    workers: int = 2
    shards: int = 4
    repeats: int = 2


def main(arguments: Arguments) -> None:
    record, console = Record("encode"), Console()
    for num_items in arguments.num_items:
        folder = Path(tempfile.mkdtemp(prefix="rails-ray-encode-"))
        try:
            for rows in measured(folder, num_items, arguments):
                record.row(**rows)
                console.print({name: value for name, value in rows.items() if name != "curve"})
        finally:
            shutil.rmtree(folder)


def measured(folder: Path, num_items: int, arguments: Arguments) -> Iterator[dict[str, Any]]:
    """Rows of one size: the first execution, then loop and Ray in turns."""
    apart = multiprocessing.get_context("spawn")
    names = [run for run in RUNS if run == "two-tower" or num_items <= arguments.look_up_items]
    with apart.Pool(1) as pool:
        pool.apply(prepare, (folder, num_items, names))
    for run in names:
        with apart.Pool(1) as driver:
            driver.apply(start_cluster, (arguments.workers,))
            for repeat in range(arguments.repeats + 1):
                row = driver.apply(on_cluster, (folder, run, num_items, arguments))
                yield {"repeat": repeat, "is_cold": repeat == 0, **row}
                if repeat:
                    with apart.Pool(1) as alone:
                        yield {"repeat": repeat, "is_cold": False, **alone.apply(loop, (folder, run, num_items))}
            driver.apply(stop_cluster)
        if run == "two-tower":
            yield killed_and_resumed(folder, run, num_items, arguments, row["digest"])


def prepare(folder: Path, num_items: int, names: list[str]) -> None:
    """Runs of untrained models, on items with short names and, for the look-up, interactions that name every item."""
    words = np.array(["red", "green", "blue", "white", "black", "grey", "pink", "gold", "plum", "lime"])
    data = folder / "data"
    (data / "items").mkdir(parents=True)
    for number, first in enumerate(range(0, num_items, FILE_ROWS)):
        rows = np.arange(first, min(first + FILE_ROWS, num_items))
        texts = [f"{words[row % 10]} {words[row // 10 % 10]} thing {row}" for row in rows.tolist()]
        pq.write_table(pa.table({"item_id": rows, "text": texts}), data / "items" / f"{number:05d}.parquet")
    if "look-up" in names:
        rows = np.arange(num_items)
        interactions = {"user_id": rows // 100, "item_id": rows, "position": rows % 100}
        pq.write_table(pa.table(interactions), data / "interactions.parquet")
    for run in names:
        run_config: RunConfig = replace(by_name(RUNS[run]), data=DataConfig(folder=str(data)))
        if run == "two-tower":  # 64 numbers wide throughout
            run_config = run_config.with_family(encoder=TwoTowerConfig(width=64, hidden=128, num_buckets=2**16))
        else:
            ids = read_corpus(run_config, Storage(str(folder))).items.read()["item_id"]
            run_config = run_config.with_family(encoder=replace(run_config.family.encoder, num_items=len(ids)))
        runs.write(
            Storage(str(folder)),
            run,
            weights=weight_files.to_bytes(DualEncoderTraining.of(run_config).model()),
            validation=json.dumps({"cutoff_mass": None}).encode(),
            training={"seconds": 0, "losses": []},
            config=config.to_json(run_config),
        )


def loop(folder: Path, run: str, num_items: int) -> dict[str, Any]:
    """Encode and write in this process, the model and the table of items in memory before the clock starts."""
    store = Storage(str(folder))
    found = runs.read(store, run)
    run_config = config.from_json(found.config)
    model = training_family(run_config).trained_model(runs.weights(store, found))
    items = read_corpus(run_config, store).items.read().table
    target = folder / "loop"
    target.mkdir(exist_ok=True)
    started = time.perf_counter()
    with torch.no_grad():
        for first in range(0, items.num_rows, PART_ITEMS):
            batch = items.slice(first, PART_ITEMS)
            encoded = model.encode_items(model.item_features(item_inputs(batch)))
            part = parquet.item_part(batch, encoded)
            pq.write_table(part, target / f"{first}.parquet", compression="zstd", use_dictionary=False)
    seconds = time.perf_counter() - started
    size_bytes = sum(path.stat().st_size for path in target.iterdir())
    shutil.rmtree(target)
    return result(run, "loop", num_items, seconds, size_bytes)


def start_cluster(workers: int) -> None:
    os.environ["RAY_DATA_LOG_LEVEL"] = "ERROR"
    from rails_ray.on_ray.cluster import cluster

    cluster(workers + 2).__enter__()


def stop_cluster() -> None:
    import ray

    ray.shutdown()


def killed_and_resumed(folder: Path, run: str, num_items: int, arguments: Arguments, expected: str) -> dict[str, Any]:
    """Encode until 60% of the parts are written, kill all of it, and encode the rest on another cluster.

    Args:
        expected: the digest of the uninterrupted version.
    """
    apart = multiprocessing.get_context("spawn")
    num_parts = len(parts.plan(parts.even_shards(num_items, arguments.shards), PART_ITEMS))
    store = Storage(str(folder))
    driver = apart.Process(target=start_and_encode, args=(folder, run, arguments))
    driver.start()
    while (written := len(parts.rows_written(store, VERSION))) < KILL_AT * num_parts:
        if not driver.is_alive():
            raise RuntimeError(f"encoding must last until it is killed, got its end after {written} parts")
        driver.join(0.05)
    all_of_it = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
    for process in all_of_it:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(all_of_it, timeout=10)
    with apart.Pool(1) as another:
        another.apply(start_cluster, (arguments.workers,))
        row = another.apply(on_cluster, (folder, run, num_items, arguments))
        another.apply(stop_cluster)
    told = {"way": "resumed", "parts_before": written, "parts": num_parts, "has_same_bytes": row["digest"] == expected}
    return {name: value for name, value in row.items() if name not in ("items_per_s", "curve")} | told


def start_and_encode(folder: Path, run: str, arguments: Arguments) -> None:
    start_cluster(arguments.workers)
    encode(folder, run, arguments)


def encode(folder: Path, run: str, arguments: Arguments) -> Encoded:
    from rails_ray import on_ray

    return on_ray.encode(
        str(folder),
        run,
        version=VERSION,
        num_workers=arguments.workers,
        num_shards=arguments.shards,
        part_items=PART_ITEMS,
    )


def on_cluster(folder: Path, run: str, num_items: int, arguments: Arguments) -> dict[str, Any]:
    with memory() as seen:
        started = time.perf_counter()
        encoded = encode(folder, run, arguments)
        seconds = time.perf_counter() - started
    size_bytes = sum(path.stat().st_size for path in (folder / "objects").iterdir())
    shutil.rmtree(folder / "versions")
    shutil.rmtree(folder / "objects")
    step = max(len(seen) // CURVE_POINTS, 1)
    return result(run, "ray", num_items, seconds, size_bytes) | {
        "digest": hashlib.sha256("".join(part.sha256 for part in encoded.parts).encode()).hexdigest()[:16],
        "driver_mb": max(driver for _, driver, _ in seen),
        "worker_mb": max(worker for _, _, worker in seen),
        "curve": seen[::step],
    }


@contextmanager
def memory() -> Iterator[list[tuple[float, int, int]]]:
    """(seconds, MB of this process, MB of the largest worker of Ray), sampled inside the block."""
    seen, ended, started = list[tuple[float, int, int]](), threading.Event(), time.perf_counter()

    def sample() -> None:
        own = psutil.Process()
        while not ended.wait(SAMPLE_S):
            workers = [_resident(process) for process in psutil.process_iter() if _is_worker(process)]
            seen.append((round(time.perf_counter() - started, 1), _resident(own), max(workers, default=0)))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _is_worker(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("ray::")
    except psutil.Error:
        return False


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss // MB
    except psutil.Error:
        return 0


def result(run: str, way: str, num_items: int, seconds: float, size_bytes: int) -> dict[str, Any]:
    speed = {"seconds": round(seconds, 2), "items_per_s": round(num_items / seconds)}
    return {"model": run, "way": way, "num_items": num_items, **speed, "size_mb": round(size_bytes / MB)}


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
