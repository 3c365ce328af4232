"""Encode the items of a run with Ray Data into the parts of an index version."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import ray
import ray.data
from ray.data import Datasink
from ray.data.block import Block, BlockAccessor

from rails_ray import config
from rails_ray.build import family
from rails_ray.build.data import read_corpus, with_data
from rails_ray.build.items import Fitting, ItemEncoder, NewCodes
from rails_ray.config import DataConfig
from rails_ray.data.corpus import item_inputs
from rails_ray.errors import DamagedError
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.failures import told_plainly
from rails_ray.on_ray.progress import OnProgress, watch
from rails_ray.storage import manifest, parquet, parts, runs
from rails_ray.storage.filesystem import Storage, timed_name
from rails_ray.storage.manifest import Encoded
from rails_ray.storage.parts import PartsByItem, PlannedPart

PART_ITEMS = 16_384  # in a part: seconds of work for a CPU, tens of megabytes for a mixture


def encode(
    storage: str,
    run: str,
    *,
    version: str | None = None,
    num_shards: int = 2,
    num_workers: int = 1,
    part_items: int = PART_ITEMS,
    use_gpu: bool | None = None,
    data: DataConfig | None = None,
    new_codes: NewCodes = "least_loaded",
    min_chunks: int | None = None,
    on_progress: OnProgress | None = None,
) -> Encoded:
    """Encode all items of the run's data set and write them as the parts of a version, which stays unpublished.

    What all blocks of items need, such as SOLAR's codes, is made first and stored beside the version. Items keep the
    codes that they have in the run, or else in the current version if it comes from the same run. So items can be
    added and removed without training.

    Call it again for the same version to resume: it writes only the missing parts, and leaves a finished version as it
    is. The same run, items and sizes give the same bytes.

    Args:
        storage: root, a local folder or s3://bucket/prefix.
        version: name of the version; by default the recipe's name and the time.
        num_shards: shards of consecutive items; their sizes differ by at most one item.
        num_workers: encoding tasks that run at the same time.
        part_items: most items in a part; each task loses at most one part if encoding is interrupted.
        use_gpu: one GPU per task; by default if the cluster has enough of them.
        data: data whose items to encode, such as newer data; by default the data in the run's config.
        new_codes: how to choose buckets for items without SOLAR codes: the least loaded of a few hashed buckets, or the
            buckets `predicted` for the item's text, so that queries find it before the next training.
        min_chunks: fewest trained chunks of SOLAR to accept; by default all.
        on_progress: called a few times a second.

    Raises:
        NotFoundError: if there is no such run.
        ValueError: if there are fewer items than shards, too few chunks, or the version was begun with other arguments.
        StorageError: if storage cannot be written to.
    """
    for name, number in (("num_workers", num_workers), ("part_items", part_items)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    if min_chunks is not None and min_chunks < 1:
        raise ValueError(f"min_chunks must be at least 1, got {min_chunks}")
    store = Storage(storage)
    store.check_writable()
    found = runs.read(store, run, min_chunks)
    run_config = config.from_json(found.config)
    run_config = with_data(run_config, data or run_config.data)
    corpus = read_corpus(run_config, store)
    items, own = corpus.items, family(run_config)
    if not 1 <= num_shards <= items.num_rows:
        raise ValueError(f"num_shards must be at least 1 and at most the {items.num_rows} items, got {num_shards}")
    version = version or timed_name(run_config.name)
    if new_codes not in get_args(NewCodes):
        raise ValueError(f"new_codes must be one of {', '.join(get_args(NewCodes))}, got {new_codes!r}")
    fitting = Fitting(
        storage=store,
        folder=manifest.folder_of(version),
        run=found,
        items=items,
        new_codes=new_codes,
        remotely=_remotely,
    )
    artefact = own.fit(fitting)
    if not own.encodes_inputs:
        use_gpu = False  # nothing is left to compute
    elif use_gpu is None:
        use_gpu = ray.cluster_resources().get("GPU", 0) >= num_workers

    weights_sha256 = _digest_of(found)
    planned = parts.plan(parts.even_shards(items.num_rows, num_shards), part_items)
    parts.begin(
        store,
        version,
        {
            "run": run,
            "weights": weights_sha256,
            "items": _digest(items),
            "num_shards": num_shards,
            "part_items": part_items,
            **artefact.facts,
        },
    )
    if parts.is_finished(store, version):
        return manifest.read_encoded(store, version)
    artefact.store()
    written = parts.rows_written(store, version)
    missing = [part for part in planned if part.first_row not in written]

    blocks = items if own.encodes_inputs else items.drop_columns(["input"])
    config_json = config.to_json(run_config)
    sink = EncodingSink(str(store), version, run, weights_sha256, config_json, PartsByItem(missing, items["item_id"]))
    write = partial(_write, blocks, missing, sink, num_workers, use_gpu)

    def parts_done() -> tuple[int, int, str]:
        return len(parts.rows_written(store, version)), len(planned), "parts"

    if missing and on_progress is not None:
        watch(write, parts_done, on_progress)
    elif missing:
        write()

    return parts.finish(
        store,
        version,
        planned,
        run=run,
        query=corpus.query,
        files=chain([(manifest.CONFIG, config_json)], runs.weights(store, found), corpus.files.items()),
        cutoff_mass=found.cutoff_mass,
    )


def _write(items: pa.Table, missing: list[PlannedPart], sink: "EncodingSink", num_workers: int, use_gpu: bool) -> None:
    """Encode the missing parts, `num_workers` at a time."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    with told_plainly():
        ray.data.from_arrow([items.slice(part.first_row, part.num_items) for part in missing]).write_datasink(
            sink, concurrency=num_workers, ray_remote_args={"num_cpus": 1, "num_gpus": 1 if use_gpu else 0}
        )


def _digest(items: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, items.schema) as stream:
        stream.write_table(items.combine_chunks())
    return hashlib.sha256(sink.getvalue()).hexdigest()


class EncodingSink(Datasink[None]):
    """Encodes each block and writes it as a part in the same task, so no vector travels.

    Args:
        config_json: config of the run, with the data to encode.
        planned: the parts, one per block.
    """

    def __init__(
        self, storage: str, version: str, run: str, weights_sha256: str, config_json: bytes, planned: PartsByItem
    ) -> None:
        self.storage = storage
        self.version = version
        self.run = run
        self.weights_sha256 = weights_sha256
        self.config_json = config_json
        self.planned = planned

    def write(self, blocks: Iterable[Block], ctx: Any) -> None:
        for block in blocks:
            items = BlockAccessor.for_block(block).to_arrow()
            if items.num_rows:
                self._write(items)

    def _write(self, items: pa.Table) -> None:
        item_ids = items["item_id"].to_pylist()
        planned = self.planned.of(item_ids)
        encode = _encoder(self.storage, self.version, self.run, self.weights_sha256, self.config_json)
        state = encode(item_ids, item_inputs(items) if "input" in items.column_names else None)
        rows = np.arange(planned.first_row, planned.first_row + planned.num_items)
        part = parquet.item_part(items.append_column("item_row", pa.array(rows)), state)
        parts.write_part(Storage(self.storage), self.version, planned, part)


@lru_cache(maxsize=1)
def _encoder(storage: str, version: str, run: str, weights_sha256: str, config_json: bytes) -> ItemEncoder:
    """The encoder for the items of a version, made once per worker process."""
    store, folder = Storage(storage), manifest.folder_of(version)
    weights = _weights(store, run, weights_sha256)
    return family(config.from_json(config_json)).item_encoder(store, folder, weights, reserved_device())


def _weights(store: Storage, run: str, weights_sha256: str) -> Iterator[tuple[str, bytes]]:
    """The weights of a run, read when the first is needed.

    Raises:
        DamagedError: if they changed since encoding began.
    """
    found = runs.read(store, run)
    if _digest_of(found) != weights_sha256:
        raise DamagedError(f"run {run!r} must stay as it was when encoding began, got other weights: encode it again")
    yield from runs.weights(store, found)


def _digest_of(run: runs.Run) -> str:
    """A digest of all weights of a run."""
    return hashlib.sha256(json.dumps(run.weights_sha256).encode()).hexdigest()


def _remotely(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a task on the cluster and return its result."""
    with told_plainly():
        return ray.get(_called.remote(function, *arguments))


@ray.remote(num_cpus=1)
def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
