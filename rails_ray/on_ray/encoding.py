"""Encode the items of a run with Ray Data into the parts of an index version."""

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
from ray.data import Datasink
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import WriteResult

from rails_ray import build, config
from rails_ray.encoders.model import Model
from rails_ray.errors import DamagedError
from rails_ray.evaluation.ranking import encode_items
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.failures import told_plainly
from rails_ray.storage import manifest, parquet, runs
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import Encoded, PartEntry

ROWS_PER_BLOCK = 1024  # items of a block: a second's work for an encoder on a CPU, and the most that a part holds


def encode(
    storage: str,
    run: str,
    *,
    version: str | None = None,
    num_shards: int = 2,
    num_workers: int = 1,
    use_gpu: bool | None = None,
) -> Encoded:
    """Encode all items of the run's data set and write them as the parts of a version, which stays unpublished.

    Args:
        storage: root folder.
        version: its name; by default the recipe's name and the time.
        num_shards: shards, each of consecutive items and of equal size but for one item.
        num_workers: encoding tasks at a time.
        use_gpu: one GPU per task; by default where the cluster has enough of them.

    Raises:
        NotFoundError: if there is no such run.
        ValueError: if there are fewer items than shards, or the version exists.
    """
    store = Storage(storage)
    found = runs.read(store, run)
    run_config = config.from_json(found.config)
    data = build.data(run_config.data, store)
    num_items = len(data.item_ids)
    if not 1 <= num_shards <= num_items:
        raise ValueError(f"num_shards must be at least 1 and at most the {num_items} items, got {num_shards}")
    if num_workers < 1:
        raise ValueError(f"num_workers must be at least 1, got {num_workers}")
    version = version or f"{run_config.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    manifest.check_new(store, version)
    if use_gpu is None:
        use_gpu = ray.cluster_resources().get("GPU", 0) >= num_workers

    items = pa.table(
        {"item_row": np.arange(num_items), "item_id": pa.array(data.item_ids), "text": pa.array(data.item_texts)}
    )
    sink = PartSink(str(store), version, manifest.even_shards(num_items, num_shards))
    ray.data.DataContext.get_current().enable_progress_bars = False
    blocks = [items.slice(first, ROWS_PER_BLOCK) for first in range(0, num_items, ROWS_PER_BLOCK)]
    with told_plainly():
        ray.data.from_arrow(blocks).map_batches(
            partial(encode_block, storage=str(store), run=run),
            batch_size=ROWS_PER_BLOCK,
            batch_format="pyarrow",
            compute=ray.data.TaskPoolStrategy(size=num_workers),
            num_cpus=1,
            num_gpus=1 if use_gpu else 0,
        ).write_datasink(sink)

    files = {manifest.CONFIG: found.config, manifest.WEIGHTS: found.weights}
    for name, content in files.items():
        store.write(f"{manifest.folder_of(version)}/{name}", content)
    encoded = Encoded(
        version=version,
        run=run,
        num_items=num_items,
        shard_items=sink.shard_items,
        columns=sink.columns,
        parts=sorted(sink.parts, key=lambda part: part.first_row),
        files=[manifest.describe(name, content) for name, content in files.items()],
        cutoff_mass=found.cutoff_mass,
    )
    manifest.write_encoded(store, encoded)
    return encoded


def encode_block(items: pa.Table, storage: str, run: str) -> pa.Table:
    """The index part of some items, given with their row, id and text."""
    model = _model(storage, run)
    encoded = encode_items(model, model.features(items["text"].to_pylist()))
    return parquet.item_part(items["item_row"], items["item_id"], encoded)


@lru_cache(maxsize=1)
def _model(storage: str, run: str) -> Model:
    """The run's model, loaded once by each worker process."""
    found = runs.read(Storage(storage), run)
    model = build.trained_model(config.from_json(found.config), found.weights)
    return model.to(reserved_device())


Written = list[tuple[PartEntry, dict[str, str]]]
"""Parts with the names and Arrow types of their columns."""


class PartSink(Datasink[Written]):
    """Writes blocks as parts. A retried task writes under a new name; only what the last attempt returns is used."""

    def __init__(self, storage: str, version: str, shard_items: list[int]) -> None:
        self.storage = storage
        self.version = version
        self.shard_items = shard_items
        self.parts: list[PartEntry] = []
        self.columns: dict[str, str] = {}

    def write(self, blocks: Iterable[Block], ctx: Any) -> Written:
        store = Storage(self.storage)
        written: Written = []
        for block in blocks:
            table = BlockAccessor.for_block(block).to_arrow()
            for shard, part in parquet.split_by_shard(table, self.shard_items):
                first_row = part["item_row"][0].as_py()
                path = f"shard-{shard:03d}/part-{first_row:09d}-{uuid.uuid4().hex[:8]}.parquet"
                data = parquet.to_bytes(part)
                store.write(f"{manifest.folder_of(self.version)}/{path}", data)
                entry = manifest.describe(path, data)
                columns = {field.name: str(field.type) for field in part.schema}
                written.append(
                    (
                        PartEntry(
                            path=path,
                            size_bytes=entry.size_bytes,
                            sha256=entry.sha256,
                            shard=shard,
                            first_row=first_row,
                            num_items=part.num_rows,
                        ),
                        columns,
                    )
                )
        return written

    def on_write_complete(self, write_result: WriteResult[Written]) -> None:
        written = [entry for entries in write_result.write_returns for entry in entries]
        self.parts = [part for part, _ in written]
        self.columns = written[0][1]
        num_items = sum(part.num_items for part in self.parts)
        if num_items != sum(self.shard_items):
            raise DamagedError(f"encoding must write all {sum(self.shard_items)} items, got {num_items}")
