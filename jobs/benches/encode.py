"""Encoding with Ray Data: how much of a plain loop's speed is left?

The same model, items, parts and bytes, encoded and written to a local folder: once by a loop of torch and pyarrow in
this process, which knows neither Ray nor checksums, and once by `on_ray.encode`, with checksums, fsync and records. The
model is as cheap as can be (an embedding per item, a linear map, normalised), so that all else shows.

    python -m jobs.benches.encode [--num-items 1000000] [--workers 2]

A yes is at least 60% of the loop's items per second, with the driver below 1 GB. The cluster is up before the clock
starts, and its workers have run one small encoding, as in a pipeline; the first row is without that.
"""

import json
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import tyro
from rich.console import Console

from jobs.benches.record import Record
from rails_ray import build, config, on_ray
from rails_ray.config import DataConfig, RunConfig
from rails_ray.encoders.model import Model
from rails_ray.on_ray.cluster import cluster
from rails_ray.recipes.ml1m import ml1m_sasrec
from rails_ray.storage import parquet, runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training import state

BATCH_ITEMS = 16_384


@dataclass(frozen=True)
class Arguments:
    num_items: int = 1_000_000
    workers: int = 2
    repeats: int = 3


def main(arguments: Arguments) -> None:
    record, console = Record("encode"), Console()
    folder = Path(tempfile.mkdtemp(prefix="rails-ray-encode-"))
    try:
        made = prepare(folder, arguments.num_items)
        with cluster(arguments.workers + 2):
            row = on_cluster(folder, "cold", arguments)
            record.row(**row)
            console.print(row)
            for repeat in range(arguments.repeats):
                for row in (loop(folder, *made), on_cluster(folder, f"warm-{repeat}", arguments)):
                    record.row(repeat=repeat, **row)
                    console.print(row)
    finally:
        shutil.rmtree(folder)


def prepare(folder: Path, num_items: int) -> tuple[Model, np.ndarray]:
    """A run of an untrained model, with interactions that name every item."""
    rows = np.arange(num_items)
    data = folder / "data"
    data.mkdir()
    pq.write_table(pa.table({"item_id": rows}), data / "items.parquet")
    users = {"user_id": rows // 100, "item_id": rows, "position": rows % 100}
    pq.write_table(pa.table(users), data / "interactions.parquet")
    run_config: RunConfig = replace(ml1m_sasrec(), data=DataConfig(folder=str(data)))
    run_config = build.for_data(run_config, build.data(run_config, Storage(str(folder))))
    model = build.model(run_config).eval()
    runs.write(
        Storage(str(folder)),
        "run",
        weights=state.to_bytes(model),
        validation=json.dumps({"cutoff_mass": None}).encode(),
        training={"seconds": 0, "losses": []},
        config=config.to_json(run_config),
    )
    return model, rows


def loop(folder: Path, model: Model, rows: np.ndarray) -> dict[str, object]:
    """Encode and write in this process."""
    target = folder / "loop"
    target.mkdir(exist_ok=True)
    torch.set_num_threads(2)
    started = time.perf_counter()
    with torch.no_grad():
        for first in range(0, len(rows), BATCH_ITEMS):
            batch = rows[first : first + BATCH_ITEMS]
            encoded = model.encode_items(torch.from_numpy(batch))
            table = pa.table({"item_row": batch, "item_id": batch})
            pq.write_table(
                parquet.item_part(table, encoded), target / f"{first}.parquet", compression="zstd", use_dictionary=False
            )
    return result("loop", len(rows), time.perf_counter() - started)


def on_cluster(folder: Path, version: str, arguments: Arguments) -> dict[str, object]:
    started = time.perf_counter()
    on_ray.encode(str(folder), "run", version=version, num_workers=arguments.workers)
    seconds = time.perf_counter() - started
    shutil.rmtree(folder / "versions" / version)
    return result(f"ray, {version.split('-')[0]}", arguments.num_items, seconds)


def result(way: str, num_items: int, seconds: float) -> dict[str, object]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "way": way,
        "num_items": num_items,
        "seconds": seconds,
        "items_per_s": num_items / seconds,
        "driver_mb": peak,
    }


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
