"""Work of the tasks that encode: they read items, encode them and write them as parts."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.data.corpus import ItemSource, item_inputs
from rails_ray.errors import DamagedError
from rails_ray.families import config
from rails_ray.families.items import ItemEncoder
from rails_ray.families.registry import served_family
from rails_ray.storage import manifest, parquet, parts, runs
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import keys_of
from rails_ray.storage.parquet_files import FileRows
from rails_ray.storage.parts import PlannedPart, Task, shards_of


@dataclass(frozen=True)
class EncodingWork:
    """Work of the tasks that read, encode and write.

    config_json: config of the run, with the data to encode.
    tasks: groups of tasks that follow one another, several only by hash.
    keeps_texts: whether parts hold the items' texts.
    allowed: code that the config may name.
    attributes: columns of the items that parts hold as they are.
    device: gives the torch device of the process that does a task.
    counted: a block in which what is counted of a part is shown.
    """

    storage: str
    version: str
    run: str
    weights_sha256: str
    config_json: bytes
    source: ItemSource
    files: Sequence[FileRows]
    num_shards: int
    tasks: Sequence[Sequence[Task]]
    keeps_texts: bool
    allowed: AllowedCode = OURS_ALONE
    attributes: Sequence[str] = ()
    device: Callable[[], str] = lambda: "cpu"
    counted: Callable[[PlannedPart], AbstractContextManager[None]] = lambda part: nullcontext()

    def __call__(self, number: int) -> None:
        """Write the parts of a group of tasks that have no record yet. One part is written while the next is
        encoded."""
        group = self.tasks[number]
        store = Storage(self.storage)
        written = parts.rows_written(store, self.version)
        made_from = (self.storage, self.version, self.run, self.weights_sha256, self.config_json, self.allowed)
        encode = _encoder(*made_from, self.device())
        with ThreadPoolExecutor(1) as pool:
            pending: Future[None] | None = None
            for planned, items in self._parts(group):
                if planned.first_row in written:
                    continue
                with self.counted(planned):
                    state = encode(items["item_id"].to_pylist(), _inputs(items))
                named = items.append_column("text", items["input"]) if self.keeps_texts else items
                part = parquet.item_part(named, state, self.attributes)
                if pending is not None:
                    pending.result()
                pending = pool.submit(parts.write_part, store, self.version, planned, part)
            if pending is not None:
                pending.result()

    def _parts(self, group: Sequence[Task]) -> Iterator[tuple[PlannedPart, pa.Table]]:
        first, num_rows = group[0], sum(task.num_rows for task in group)
        blocks = self.source.blocks(self.files, first.first_row, num_rows)
        if not first.is_by_hash:
            yield from zip(first.parts, recut(blocks, [part.num_items for part in first.parts]), strict=True)
            return
        for task, items in zip(group, recut(blocks, [task.num_rows for task in group]), strict=True):
            shards = shards_of(keys_of(items["item_id"]), self.num_shards)
            for part in task.parts:
                yield part, items.filter(pa.array(shards == part.shard))


def recut(blocks: Iterable[pa.Table], sizes: Sequence[int]) -> Iterator[pa.Table]:
    """The rows of all blocks as tables of these sizes."""
    held, ahead = list[pa.Table](), iter(blocks)
    for size in sizes:
        while sum(block.num_rows for block in held) < size:
            held.append(next(ahead))
        joined = pa.concat_tables(held)
        yield joined.slice(0, size)
        held = [joined.slice(size)]
    next(ahead, None)  # the files are compared with their scans once all rows are read


def _inputs(items: pa.Table) -> Any:
    return item_inputs(items) if "input" in items.column_names else None


@lru_cache(maxsize=1)
def _encoder(
    storage: str, version: str, run: str, weights_sha256: str, config_json: bytes, allowed: AllowedCode, device: str
) -> ItemEncoder:
    """The encoder for the items of a version, made once per worker process."""
    store, folder = Storage(storage), manifest.folder_of(version)
    weights = _weights(store, run, weights_sha256)
    return served_family(config.from_json(config_json), allowed).item_encoder(store, folder, weights, device)


def _weights(store: Storage, run: str, weights_sha256: str) -> Iterator[tuple[str, bytes]]:
    """The weights of a run, read when the first is needed.

    Raises:
        DamagedError: if they changed since encoding began.
    """
    found = runs.read(store, run)
    if digest_of_weights(found) != weights_sha256:
        raise DamagedError(f"run {run!r} must stay as it was when encoding began, got other weights: encode it again")
    yield from runs.weights(store, found)


def digest_of_weights(run: runs.Run) -> str:
    """A digest of all weights of a run."""
    return hashlib.sha256(json.dumps(run.weights_sha256).encode()).hexdigest()
