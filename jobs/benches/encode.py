"""Encoding with Ray Data: how much of a plain loop's speed is left?

The same model, items, parts and bytes, encoded and written to a local folder: once by a loop of torch and pyarrow in a
process of its own, which knows neither Ray nor checksums, and once by `on_ray.encode`, with checksums, fsync and
records. The vectors are 64 float32 wide. Two models: the two-tower of the emoji recipe on short texts, and an embedding
per item (256 MB of weights that each worker must load, and next to no arithmetic), the worst that can be asked.

    python -m jobs.benches.encode [--num-items 1000000] [--workers 2]

A yes is at least 60% of the loop's items per second, with the driver below 1 GB. The cluster is up before the clock
starts; the first execution on it is cold: its workers import and load.
"""

import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import tyro
from rich.console import Console

from jobs.benches.record import Record
from rails_ray import config, on_ray
from rails_ray.build import family
from rails_ray.build.data import for_data, read_corpus, read_data
from rails_ray.build.dual_encoder import DualEncoderFamily
from rails_ray.config import DataConfig, RunConfig
from rails_ray.data.corpus import item_inputs
from rails_ray.encoders.two_tower import TwoTowerConfig
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.encoding import PART_ITEMS
from rails_ray.recipes import by_name
from rails_ray.storage import parquet, runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training import state

RUNS = {"two-tower": "text-dot", "look-up": "ml1m-sasrec"}  # and the recipe of each


@dataclass(frozen=True)
class Arguments:
    num_items: int = 1_000_000
    workers: int = 2
    repeats: int = 3


def main(arguments: Arguments) -> None:
    os.environ["RAY_DATA_LOG_LEVEL"] = "ERROR"
    record, console = Record("encode"), Console()
    folder = Path(tempfile.mkdtemp(prefix="rails-ray-encode-"))
    processes = multiprocessing.get_context("spawn")
    try:
        with processes.Pool(1) as apart:
            apart.apply(prepare, (folder, arguments.num_items))
        with cluster(arguments.workers + 2):
            for run in RUNS:
                for repeat in range(arguments.repeats + 1):
                    rows = [on_cluster(folder, run, f"{run}-{repeat}", arguments)]
                    if repeat:
                        with processes.Pool(1) as apart:
                            rows.append(apart.apply(loop, (folder, run)))
                    for row in rows:
                        record.row(repeat=repeat, is_cold=repeat == 0, **row)
                        console.print(row)
    finally:
        shutil.rmtree(folder)


def prepare(folder: Path, num_items: int) -> None:
    """Runs of untrained models, on items with short names and on interactions that name every item."""
    rows = np.arange(num_items)
    words = np.array(["red", "green", "blue", "white", "black", "grey", "pink", "gold", "plum", "lime"])
    names = [f"{words[row % 10]} {words[row // 10 % 10]} thing {row}" for row in rows.tolist()]
    tables = {
        "items": {"item_id": rows, "text": names},
        "interactions": {"user_id": rows // 100, "item_id": rows, "position": rows % 100},
        "queries": {"query_id": [0, 1, 2], "text": ["a", "b", "c"], "split": ["train", "valid", "test"]},
        "relevance": {"query_id": [0, 1, 2], "item_id": [0, 1, 2]},
    }
    data = folder / "data"
    data.mkdir()
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), data / f"{name}.parquet")
    for run, recipe in RUNS.items():
        run_config: RunConfig = replace(by_name(recipe), data=DataConfig(folder=str(data)))
        if recipe == "text-dot":  # 64 numbers wide throughout
            run_config = run_config.with_family(encoder=TwoTowerConfig(width=64, hidden=128, num_buckets=2**16))
        run_config = for_data(run_config, read_data(run_config, Storage(str(folder))))
        runs.write(
            Storage(str(folder)),
            run,
            weights=state.to_bytes(DualEncoderFamily.of(run_config).model()),
            validation=json.dumps({"cutoff_mass": None}).encode(),
            training={"seconds": 0, "losses": []},
            config=config.to_json(run_config),
        )


def loop(folder: Path, run: str) -> dict[str, Any]:
    """Encode and write in this process, the model and the table of items in memory before the clock starts."""
    store = Storage(str(folder))
    found = runs.read(store, run)
    run_config = config.from_json(found.config)
    model = family(run_config).trained_model(runs.weights(store, found))
    items = read_corpus(run_config, store).items
    items = items.append_column("item_row", pa.array(np.arange(items.num_rows)))
    target = folder / "loop"
    target.mkdir(exist_ok=True)
    started = time.perf_counter()
    with torch.no_grad():
        for first in range(0, items.num_rows, PART_ITEMS):
            batch = items.slice(first, PART_ITEMS)
            encoded = model.encode_items(model.item_features(item_inputs(batch)))
            part = parquet.item_part(batch, encoded)
            pq.write_table(part, target / f"{first}.parquet", compression="zstd", use_dictionary=False)
    return result(run, "loop", items.num_rows, time.perf_counter() - started)


def on_cluster(folder: Path, run: str, version: str, arguments: Arguments) -> dict[str, Any]:
    started = time.perf_counter()
    on_ray.encode(str(folder), run, version=version, num_workers=arguments.workers)
    seconds = time.perf_counter() - started
    shutil.rmtree(folder / "versions" / version)
    return result(run, "ray", arguments.num_items, seconds)


def result(run: str, way: str, num_items: int, seconds: float) -> dict[str, Any]:
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    speed = {"seconds": round(seconds, 2), "items_per_s": round(num_items / seconds)}
    return {"model": run, "way": way, "num_items": num_items, **speed, "peak_mb": round(peak_mb)}


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
