"""Encode the items of a run with Ray Data into the parts of an index version."""

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import ray
import ray.data
import torch
from ray.data import Datasink
from ray.data.block import Block, BlockAccessor

from rails_ray import config
from rails_ray.build import family
from rails_ray.build.data import read_corpus, with_data
from rails_ray.build.solar import SolarFamily
from rails_ray.config import DataConfig, RunConfig
from rails_ray.config.solar import SolarConfig
from rails_ray.data.corpus import item_inputs
from rails_ray.errors import DamagedError
from rails_ray.evaluation.ranking import encode_items
from rails_ray.models import Model
from rails_ray.models.solar import Predicted, Solar, predicted_buckets
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.failures import told_plainly
from rails_ray.on_ray.progress import OnProgress, watch
from rails_ray.similarities.states import AnyItems, Codes
from rails_ray.storage import codes, manifest, parquet, parts, runs, versions
from rails_ray.storage.codes import ItemCodes
from rails_ray.storage.filesystem import Storage, timed_name
from rails_ray.storage.manifest import Encoded
from rails_ray.storage.parts import PlannedPart

NewCodes = Literal["least_loaded", "predicted"]
PART_ITEMS = 16_384  # of a part: some seconds of work for a CPU, some tens of megabytes for a mixture


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

    Of SOLAR, whose items have codes, those that the current version has, if it is of the same run, or else the run,
    keep theirs. So items come and go without training.

    Encoding that was cut off goes on with the parts that are missing, if it is called again for the same version, and
    one that ended is left as it is. The same run, items and sizes give the same bytes.

    Args:
        storage: root, a local folder or s3://bucket/prefix.
        version: its name; by default the recipe's name and the time.
        num_shards: shards, each of consecutive items and of equal size but for one item.
        num_workers: encoding tasks at a time.
        part_items: items of a part, at most; what is lost when encoding is cut off.
        use_gpu: one GPU per task; by default where the cluster has enough of them.
        data: whose items to encode, newer ones say; by default those of the run's config.
        new_codes: of items that SOLAR's codes lack: the least loaded of a few hashed buckets, or those `predicted` for
            the item's text, which is then found before the next training.
        min_chunks: of SOLAR, go on with so many trained chunks or more where not all are; by default all must be.
        on_progress: called a few times a second.

    Raises:
        NotFoundError: if there is no such run.
        ValueError: if there are fewer items than shards, too few chunks, or the version was begun with others.
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
    items = corpus.items
    has_codes = isinstance(run_config.family, SolarConfig)
    if not 1 <= num_shards <= items.num_rows:
        raise ValueError(f"num_shards must be at least 1 and at most the {items.num_rows} items, got {num_shards}")
    version = version or timed_name(run_config.name)
    if new_codes not in get_args(NewCodes):
        raise ValueError(f"new_codes must be one of {', '.join(get_args(NewCodes))}, got {new_codes!r}")
    if new_codes == "predicted" and (not has_codes or pa.types.is_integer(items["input"].type)):
        raise ValueError(f"new_codes predicted needs codes of items with a text, got run {run!r} of {run_config.name}")
    if has_codes:
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
            **({"new_codes": new_codes} if has_codes else {}),
        },
    )
    if parts.is_finished(store, version):
        return manifest.read_encoded(store, version)
    if has_codes:
        chosen = _codes(store, version, found, run_config, items, new_codes)
        items = items.append_column("codes", parquet.vectors(chosen.codes)).drop_columns(["input"])
    written = parts.rows_written(store, version)
    missing = [part for part in planned if part.first_row not in written]

    sink = EncodingSink(str(store), run, weights_sha256, version)
    write = partial(_write, items, missing, sink, num_workers, use_gpu)

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
        files=chain([(manifest.CONFIG, config.to_json(run_config))], runs.weights(store, found), corpus.files.items()),
        cutoff_mass=found.cutoff_mass,
    )


def _write(items: pa.Table, missing: list[PlannedPart], sink: "EncodingSink", num_workers: int, use_gpu: bool) -> None:
    """Encode the missing parts, so many side by side."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    with told_plainly():
        ray.data.from_arrow([_block(items, part) for part in missing]).write_datasink(
            sink, concurrency=num_workers, ray_remote_args={"num_cpus": 1, "num_gpus": 1 if use_gpu else 0}
        )


def _block(items: pa.Table, part: PlannedPart) -> pa.Table:
    """The items of a part with their rows and their shard."""
    rows = np.arange(part.first_row, part.first_row + part.num_items)
    block = items.slice(part.first_row, part.num_items).append_column("item_row", pa.array(rows))
    return block.append_column("shard", pa.array(np.full(part.num_items, part.shard)))


def _digest(items: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, items.schema) as stream:
        stream.write_table(items.combine_chunks())
    return hashlib.sha256(sink.getvalue()).hexdigest()


class EncodingSink(Datasink[None]):
    """Encodes each block that it is given and writes it as a part, in the same task: no vector travels."""

    def __init__(self, storage: str, run: str, weights_sha256: str, version: str) -> None:
        self.storage = storage
        self.run = run
        self.weights_sha256 = weights_sha256
        self.version = version

    def write(self, blocks: Iterable[Block], ctx: Any) -> None:
        store = Storage(self.storage)
        for block in blocks:
            items = BlockAccessor.for_block(block).to_arrow()
            if not items.num_rows:
                continue
            state = self._state(items)
            planned = PlannedPart(items["shard"][0].as_py(), items["item_row"][0].as_py(), items.num_rows)
            parts.write_part(store, self.version, planned, parquet.item_part(items, state))

    def _state(self, items: pa.Table) -> AnyItems:
        if "codes" in items.column_names:
            return Codes(torch.tensor(parquet.rows_in(items["codes"])))
        model = _model(self.storage, self.run, self.weights_sha256)
        return encode_items(model, model.item_features(item_inputs(items)))


@lru_cache(maxsize=1)
def _model(storage: str, run: str, weights_sha256: str) -> Model:
    """The run's model, loaded once by each worker process.

    Raises:
        DamagedError: if its weights are not those that encoding began with.
    """
    found = runs.read(Storage(storage), run)
    if _digest_of(found) != weights_sha256:
        raise DamagedError(f"run {run!r} must stay as it was when encoding began, got other weights: encode it again")
    model = family(config.from_json(found.config)).trained_model(runs.weights(Storage(storage), found))
    loaded: Model = model.to(reserved_device())
    return loaded


def _digest_of(run: runs.Run) -> str:
    """Of all its weights."""
    return hashlib.sha256(json.dumps(run.weights_sha256).encode()).hexdigest()


def _codes(
    store: Storage, version: str, found: runs.Run, run_config: RunConfig, items: pa.Table, new_codes: NewCodes
) -> ItemCodes:
    """The codes of a version's items, chosen when its encoding first began."""
    folder = manifest.folder_of(version)
    if not codes.exist(store, folder):
        codes.write(store, folder, _chosen(store, found, run_config, items, new_codes))
    return codes.read(store, folder)


def _chosen(store: Storage, found: runs.Run, run_config: RunConfig, items: pa.Table, new_codes: NewCodes) -> ItemCodes:
    """The codes of a corpus: of each item the run's, or else the current version's, or else new ones."""
    known = codes.read(store, f"runs/{found.name}")
    current = versions.current(store)
    if current is not None and _is_of(current, found):
        known = known.or_else(codes.of_version(store, current))
    item_ids = items["item_id"].to_pylist()
    own, is_new = SolarFamily.of(run_config).codes_of(known, item_ids)
    if new_codes == "least_loaded" or not is_new.any():
        return own
    texts = items["input"].filter(pa.array(is_new)).to_pylist()
    with told_plainly():
        predicted = ray.get(_predicted.remote(str(store), found.name, texts, len(found.weights_sha256)))
    return SolarFamily.of(run_config).with_predicted(own, np.flatnonzero(is_new)[predicted.is_known], predicted)


def _is_of(version: manifest.Manifest, found: runs.Run) -> bool:
    """Whether a version is of a run as it is now, and not of one that had its name before."""
    weights = found.weights_sha256
    return version.run == found.name and all(weights.get(entry.path) == entry.sha256 for entry in version.weights)


@ray.remote(num_cpus=1)
def _predicted(storage: str, run: str, texts: list[str], min_chunks: int) -> Predicted:
    store = Storage(storage)
    found = runs.read(store, run, min_chunks)
    model = family(config.from_json(found.config)).trained_model(runs.weights(store, found))
    assert isinstance(model, Solar)
    return predicted_buckets(model.to(reserved_device()), texts)
