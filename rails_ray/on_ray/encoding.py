"""Encode the items of a run with Ray Data into the parts of an index version.

The items are scanned first, a task a file: mistakes are found before anything is written, and the driver learns how
many items each file has, never the items. Then tasks of consecutive items read row groups, encode and write, a part at
a time, so that no process holds more than a part and a batch.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray

from rails_ray import counting
from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.data.corpus import (
    CorpusScan,
    ItemFiles,
    ItemSource,
    ListedItems,
    check_distinct,
    digest_of,
    item_inputs,
    keys_of_all,
    num_null_of,
)
from rails_ray.data.sources import null_notes
from rails_ray.errors import DamagedError
from rails_ray.families import config
from rails_ray.families.config import DataConfig
from rails_ray.families.data import read_corpus, training_queries, with_data
from rails_ray.families.items import Fitting, ItemEncoder, NewCodes
from rails_ray.families.query_encoder import TEXT, query_encoder_file
from rails_ray.families.registry import served_family
from rails_ray.on_ray import indexing
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.failures import plain_errors
from rails_ray.on_ray.progress import OnProgress, Reporter, in_task, latest, new_board, watch
from rails_ray.on_ray.task_runner import run_tasks
from rails_ray.storage import manifest, parquet, parts, runs
from rails_ray.storage.filesystem import Storage, timed_name
from rails_ray.storage.ids import keys_of
from rails_ray.storage.manifest import Encoded
from rails_ray.storage.parts import PlannedPart, Task, shards_of
from rails_ray.storage.tables import FileRows

PART_ITEMS = 16_384  # in a part: seconds of work for a CPU, tens of megabytes for a mixture
TASK_PARTS = 8  # in a task, at least: it opens files and begins in the middle of a row group
TASKS_PER_WORKER = 4  # at least, so that all end together

ShardBy = Literal["position", "hash"]


@dataclass(frozen=True)
class Scanned:
    """
    files: what each file holds.
    digest: sha256 of all items.
    num_in: items of each shard among every `part_items` items [tasks, shards]; None unless shards are by hash.
    num_null: nulls that are read as empty texts, by column.
    """

    files: Sequence[FileRows]
    digest: str
    num_in: NDArray[np.int64] | None
    num_null: Mapping[str, int]

    @property
    def num_items(self) -> int:
        return sum(file.num_rows for file in self.files)


def encode(
    storage: str,
    run: str,
    *,
    version: str | None = None,
    num_shards: int = 2,
    shard_by: ShardBy = "position",
    num_workers: int = 1,
    part_items: int = PART_ITEMS,
    use_gpu: bool | None = None,
    data: DataConfig | None = None,
    stored: Mapping[str, Any] = {},
    new_codes: NewCodes = "least_loaded",
    min_chunks: int | None = None,
    query_encoder: str | None = None,
    allow_code: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> Encoded:
    """Encode all items of the run's data set and write them as the parts of a version, which stays unpublished.

    What all blocks of items need, such as SOLAR's codes, is made first and stored beside the version. Items keep the
    codes that they have in the run, or else in the current version if it comes from the same run. So items can be
    added and removed without training.

    Call it again for the same version to resume: it writes only the missing parts, and leaves a finished version as it
    is. The same run, items and sizes give the same bytes. Versions share the parts that are equal.

    Args:
        storage: root, a local folder or s3://bucket/prefix.
        version: name of the version; by default the recipe's name and the time.
        num_shards: shards of the corpus.
        shard_by: `position` for shards of consecutive items, whose sizes differ by at most one item; `hash` for shards
            by a hash of the item's id, in which an item stays when others come and go.
        num_workers: encoding tasks that run at the same time.
        part_items: most items in a part; each task loses at most one part if encoding is interrupted.
        use_gpu: one GPU per task; by default if the cluster has enough of them.
        data: data whose items to encode, such as newer data; by default the data in the run's config. Without a folder,
            its tables take the place of the run's.
        stored: how to store items, where it differs from the run's config: `items`, `index` and `index_of` as in
            `DualEncoderConfig`; `dtype` of vectors; `codes`, (parts, codewords) fitted by OPQ; and for codes
            `keep_vectors` and `code_lists`; `keep_texts` to keep items' texts, for heavy rankers; fields of the
            `surrogate`, as in `SurrogateConfig`, whose fit reads the run's own data set, whole, in one task.
        new_codes: how to choose buckets for items without SOLAR codes: the least loaded of a few hashed buckets, or the
            buckets `predicted` for the item's text, so that queries find it before the next training.
        min_chunks: fewest trained chunks of SOLAR to accept; by default all.
        query_encoder: where queries are vectors, the folder of a sentence-transformers model that makes them of texts.
        allow_code: as in `local.open`.
        on_progress: called a few times a second.

    Raises:
        NotFoundError: if there is no such run.
        ValueError: if a row of the items is wrong, there are fewer items than shards, too few chunks, the run's
            config names code that is not allowed, or the version was begun with other arguments.
        StorageError: if storage cannot be written to, or a file of the items changes.
    """
    for name, number in (("num_workers", num_workers), ("part_items", part_items), ("num_shards", num_shards)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    for name, value, choices in (("new_codes", new_codes, NewCodes), ("shard_by", shard_by, ShardBy)):
        if value not in get_args(choices):
            raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")
    if min_chunks is not None and min_chunks < 1:
        raise ValueError(f"min_chunks must be at least 1, got {min_chunks}")
    store = Storage(storage)
    allowed = AllowedCode.given(allow_code).read_by(f"run {run}", str(store))
    store.check_conditional()
    found = runs.read(store, run, min_chunks)
    trained = run_config = config.from_json(found.config)
    newer = run_config.data if data is None else data.over(run_config.data)
    run_config = config.checked(served_family(with_data(run_config, newer)).stored_as(**stored))
    own = served_family(run_config, allowed)
    own.check_code(has_ranker=True)  # before any work; whether a new item calls the ranker is not known yet
    corpus = read_corpus(run_config, store)
    scanned = scan(corpus.items, part_items, num_shards if shard_by == "hash" else None)
    for note in [*corpus.notes, *null_notes("items", scanned.num_null, scanned.num_items)]:
        logging.getLogger(__name__).warning(note)
    if num_shards > scanned.num_items:
        raise ValueError(f"num_shards must be at most the {scanned.num_items} items, got {num_shards}")
    if scanned.num_in is not None and not (sizes := scanned.num_in.sum(axis=0)).all():
        raise ValueError(
            f"each of the {num_shards} shards by hash must have an item of the {scanned.num_items}, got none for shard "
            f"{int(sizes.argmin())}: take fewer shards, or shard by position"
        )
    indexing.check(own, scanned.num_items)
    if own.keeps_texts and not corpus.has_texts:
        raise ValueError(
            f"keep_texts needs items with texts, got run {run!r} of {run_config.name}, whose items have none"
        )
    version = version or timed_name(run_config.name)
    texts = None
    if query_encoder is not None:
        width = own.trained_model(runs.weights(store, found)).vector_width
        texts = query_encoder_file(query_encoder, width)
    fitting = Fitting(
        storage=store,
        folder=manifest.folder_of(version),
        run=found,
        corpus=corpus,
        new_codes=new_codes,
        remotely=partial(in_task, on_progress=on_progress),
        training_queries=partial(training_queries, trained, str(store)),
        files=scanned.files,
    )
    artefact = own.fit(fitting)
    if not own.encodes_inputs:
        use_gpu = False  # nothing is left to compute
    elif use_gpu is None:
        use_gpu = ray.cluster_resources().get("GPU", 0) >= num_workers

    weights_sha256 = _digest_of(found)
    parts.begin(
        store,
        version,
        {
            "run": run,
            "weights": weights_sha256,
            "items": scanned.digest,
            "num_shards": num_shards,
            "shard_by": shard_by,
            "part_items": part_items,
            "stored": own.storing,
            "exclude_seen": run_config.data.exclude_seen,
            **artefact.facts,
            **({} if texts is None else {"query_encoder": texts.decode()}),
        },
    )
    if parts.is_finished(store, version):
        return manifest.read_encoded(store, version)
    tell = on_progress or (lambda done, total, note: None)
    tell(0, scanned.num_items, "items to encode")
    artefact.store()
    written = parts.rows_written(store, version)
    planned, tasks = _plan(scanned, num_shards, part_items, num_workers, written)
    config_json = config.to_json(run_config)
    work = EncodingWork(
        storage=str(store),
        version=version,
        run=run,
        weights_sha256=weights_sha256,
        config_json=config_json,
        source=corpus.items,
        files=scanned.files,
        num_shards=num_shards,
        tasks=tasks,
        keeps_texts=own.keeps_texts,
        allowed=allowed,
        board=new_board() if tasks and on_progress is not None else None,
    )
    write = partial(run_tasks, work, len(tasks), num_workers, int(use_gpu))
    if work.board is not None:
        try:
            watch(write, partial(_items_done, store, version, planned, work.board), tell)
        finally:
            ray.kill(work.board)
    elif tasks:
        write()

    def indexes_of(encoded: Encoded) -> list[manifest.IndexEntry]:
        tell(scanned.num_items, scanned.num_items, "items, building indexes" if own.index_names else "items")
        return indexing.build(store, encoded, config_json)

    return parts.finish(
        store,
        version,
        planned,
        run=run,
        query=corpus.query if texts is None else corpus.query | TEXT,
        files={
            manifest.CONFIG: config_json,
            **corpus.files,
            **artefact.files(),
            **({} if texts is None else {manifest.QUERY_ENCODER: texts}),
        }.items(),
        weights_sha256=found.weights_sha256,
        cutoff_mass=found.cutoff_mass,
        indexes_of=indexes_of,
    )


def _items_done(storage: Storage, version: str, planned: Sequence[PlannedPart], board: Any) -> tuple[int, int, str]:
    """Count the items of written parts, and those that are encoded for parts that are not."""
    written, encoded = parts.rows_written(storage, version), latest(board)
    done = sum(
        part.num_items if part.first_row in written else encoded.get(str(part.first_row), (0, 0, ""))[0]
        for part in planned
    )
    return done, sum(part.num_items for part in planned), "items"


def scan(source: ItemFiles | ListedItems, part_items: int, num_shards: int | None) -> Scanned:
    """Check every item, in tasks on the cluster.

    Args:
        num_shards: shards to count items in, by hash; None to count none.

    Raises:
        NotFoundError, ValueError: as `ItemSource.scan`, and if an id occurs twice.
    """
    with plain_errors():
        scans = [_scan.remote(source, number) for number in range(source.num_files)]
        found: Scanned = ray.get(_together.remote(source, part_items, num_shards, *scans))
    return found


@ray.remote(num_cpus=1)
def _scan(source: ItemSource, number: int) -> CorpusScan:
    return source.scan(number)


@ray.remote(num_cpus=1)
def _together(source: ItemSource, part_items: int, num_shards: int | None, *scans: CorpusScan) -> Scanned:
    check_distinct(source, scans)
    num_in = None
    if num_shards is not None:
        shards = shards_of(keys_of_all(scans), num_shards)
        tasks = np.arange(len(shards)) // part_items
        counts = np.bincount(tasks * num_shards + shards, minlength=(int(tasks[-1]) + 1) * num_shards)
        num_in = counts.reshape(-1, num_shards)
    return Scanned([scan.rows for scan in scans], digest_of(scans), num_in, num_null_of(scans))


def _plan(
    scanned: Scanned, num_shards: int, part_items: int, num_workers: int, written: set[int]
) -> tuple[list[PlannedPart], list[list[Task]]]:
    """All parts by their first rows, and tasks for those that are not written, in groups that are read at once."""
    largest = max(size for file in scanned.files for size in file.row_groups)
    task_rows = min(max(TASK_PARTS * part_items, largest), scanned.num_items // (TASKS_PER_WORKER * num_workers))
    if scanned.num_in is not None:
        tasks = parts.tasks_by_hash(scanned.num_in, scanned.num_items, part_items)
        planned = sorted((part for task in tasks for part in task.parts), key=lambda part: part.first_row)
        missing_tasks = [task for task in tasks if {part.first_row for part in task.parts} - written]
        return planned, parts.together(missing_tasks, task_rows)
    planned = parts.plan(parts.even_shards(scanned.num_items, num_shards), part_items)
    missing = [part for part in planned if part.first_row not in written]
    return planned, [[task] for task in parts.tasks_by_position(missing, task_rows)]


@dataclass(frozen=True)
class EncodingWork:
    """Work of the tasks that read, encode and write.

    config_json: config of the run, with the data to encode.
    tasks: groups of tasks that follow one another, several only by hash.
    keeps_texts: whether parts hold the items' texts.
    allowed: code that the config may name.
    board: where to report progress, by the first row of a part; None to report nothing.
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
    board: Any = None

    def __call__(self, number: int) -> None:
        """Write the parts of a group of tasks that have no record yet. One part is written while the next is
        encoded."""
        group = self.tasks[number]
        store = Storage(self.storage)
        written = parts.rows_written(store, self.version)
        encode = _encoder(self.storage, self.version, self.run, self.weights_sha256, self.config_json, self.allowed)
        with ThreadPoolExecutor(1) as pool:
            pending: Future[None] | None = None
            for planned, items in self._parts(group):
                if planned.first_row in written:
                    continue
                report = Reporter(self.board, planned.num_items, piece=str(planned.first_row))
                with counting.shown(report.advance):
                    state = encode(items["item_id"].to_pylist(), _inputs(items))
                named = items.append_column("text", items["input"]) if self.keeps_texts else items
                part = parquet.item_part(named, state)
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
    storage: str, version: str, run: str, weights_sha256: str, config_json: bytes, allowed: AllowedCode
) -> ItemEncoder:
    """The encoder for the items of a version, made once per worker process."""
    store, folder = Storage(storage), manifest.folder_of(version)
    weights = _weights(store, run, weights_sha256)
    return served_family(config.from_json(config_json), allowed).item_encoder(store, folder, weights, reserved_device())


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
