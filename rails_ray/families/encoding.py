"""Encode the items of a run into the parts of an index version, in one process or by tasks on a cluster.

The items are scanned first, a task a file: mistakes are found before anything is written, and the driver learns how
many items each file has, never the items. Then tasks of consecutive items read row groups, encode and write, a part at
a time, so that no process holds more than a part and a batch.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rails_ray.allowed_code import AllowedCode
from rails_ray.data.corpus import (
    CorpusScan,
    ItemFiles,
    ItemSource,
    ListedItems,
    check_distinct,
    check_zeros,
    digest_of,
    keys_of_all,
    num_null_of,
)
from rails_ray.families import config, indexing
from rails_ray.families.config import DataConfig
from rails_ray.families.data import read_corpus, training_queries, with_data
from rails_ray.families.encoding_work import EncodingWork, digest_of_weights
from rails_ray.families.items import Fitting, NewCodes, check_codes
from rails_ray.families.query_encoder import TEXT, query_encoder_file
from rails_ray.families.registry import served_family
from rails_ray.storage import manifest, parts, runs
from rails_ray.storage.described import Encoded, IndexEntry
from rails_ray.storage.filesystem import Storage, timed_name
from rails_ray.storage.intents import intent
from rails_ray.storage.parquet_files import FileRows
from rails_ray.storage.parts import PART_ITEMS, PlannedPart, Task, shards_of

TASK_PARTS = 8  # in a task, at least: it opens files and begins in the middle of a row group
TASKS_PER_WORKER = 4  # at least, so that several workers end together

ShardBy = Literal["position", "hash"]


@dataclass(frozen=True)
class Scanned:
    """
    files: what each file holds.
    digest: sha256 of all items.
    num_in: items of each shard among every `part_items` items [tasks, shards]; None unless shards are by hash.
    num_null: nulls that are read as empty texts, by column.
    num_zero: items with a vector of zeros.
    """

    files: Sequence[FileRows]
    digest: str
    num_in: NDArray[np.int64] | None
    num_null: Mapping[str, int]
    num_zero: int

    @property
    def num_items(self) -> int:
        return sum(file.num_rows for file in self.files)


@dataclass(frozen=True, kw_only=True)
class EncodeOptions:
    """Options of encoding, as `rails_ray.on_ray.encode` describes them.

    Raises:
        ValueError: if a value is not one of its kind.
    """

    version: str | None = None
    num_shards: int = 2
    shard_by: ShardBy = "position"
    num_workers: int = 1
    part_items: int = PART_ITEMS
    use_gpu: bool | None = None
    worker_gpus: float = 1.0
    data: DataConfig | None = None
    stored: Mapping[str, Any] = field(default_factory=dict)
    new_codes: NewCodes = "least_loaded"
    min_chunks: int | None = None
    query_encoder: str | None = None
    allow_code: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("num_workers", "part_items", "num_shards"):
            if (number := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if not self.worker_gpus > 0 or (self.worker_gpus > 1 and self.worker_gpus % 1):
            raise ValueError(
                f"worker_gpus must be a part of one GPU or a whole number above 0, got {self.worker_gpus:g}: to use no "
                "GPU, set use_gpu (--use-gpu) to False"
            )
        for name, choices in (("new_codes", NewCodes), ("shard_by", ShardBy)):
            if (value := getattr(self, name)) not in get_args(choices):
                raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")
        if self.min_chunks is not None and self.min_chunks < 1:
            raise ValueError(f"min_chunks must be at least 1, got {self.min_chunks}")


Shown = Mapping[str, tuple[int, int, str]]
"""Progress of each part, by its first row: (items done, items in all, a note)."""
OnProgress = Callable[[int, int, str], None]
"""Called with (items done, items in all, a short note)."""


@runtime_checkable
class Executor(Protocol):
    """Place where the tasks of encoding run: this process, or a cluster."""

    def has_gpus(self, number: int) -> bool:
        """Return whether so many whole GPUs are there."""

    def remotely(self, function: Callable[..., Any], *arguments: Any, on_progress: OnProgress | None) -> Any:
        """Return the result of one task. What it counts is passed on."""

    def each(self, function: Callable[..., None], arguments: Sequence[Sequence[Any]]) -> None:
        """Call the function with each list of arguments, as tasks."""

    def gathered(
        self, together: Callable[..., Any], function: Callable[..., Any], arguments: Sequence[Sequence[Any]]
    ) -> Any:
        """Return what `together` makes of the results of all tasks, without this process holding them on a cluster."""

    def write(
        self,
        work: EncodingWork,
        num_workers: int,
        num_gpus: float,
        items_done: Callable[[Shown], tuple[int, int, str]],
        on_progress: OnProgress | None,
    ) -> None:
        """Do all tasks of the work, and pass on how many items are done.

        Args:
            num_gpus: GPUs, or part of one, for each worker; 0 for none.
        """


def encode(
    executor: Executor,
    storage: str,
    run: str,
    options: EncodeOptions,
    on_progress: OnProgress | None = None,
) -> Encoded:
    """Encode all items of the run's data set and write them as the parts of a version, which stays unpublished.

    `rails_ray.on_ray.encode` describes arguments and errors. Any executor writes the same bytes.
    """
    store = Storage(storage)
    store.check_conditional()
    with intent(store, f"encode {run}"):
        return _encoded(executor, store, run, options, on_progress)


def _encoded(
    executor: Executor, store: Storage, run: str, options: EncodeOptions, on_progress: OnProgress | None
) -> Encoded:
    allowed = AllowedCode.given(options.allow_code).read_by(f"run {run}", str(store))
    found = runs.read(store, run, options.min_chunks)
    trained = run_config = config.from_json(found.config)
    newer = run_config.data if options.data is None else options.data.over(run_config.data)
    newer = replace(newer, zero_vectors=newer.zero_vectors or "refuse")
    run_config = config.checked(served_family(with_data(run_config, newer)).stored_as(**options.stored))
    own = served_family(run_config, allowed)
    own.check_code(has_ranker=True)  # before any work; whether a new item calls the ranker is not known yet
    corpus = read_corpus(run_config, store)
    attributes = corpus.items.attribute_kinds
    num_shards, part_items = options.num_shards, options.part_items
    scanned = scan(executor, corpus.items, part_items, num_shards if options.shard_by == "hash" else None)
    for note in [*corpus.notes, *corpus.null_notes(scanned.num_null, scanned.num_items)]:
        logging.getLogger(__name__).warning(note)
    if num_shards > scanned.num_items:
        raise ValueError(
            f"num_shards (--shards) must be at most the {scanned.num_items} items, got {num_shards}: take fewer"
        )
    if scanned.num_in is not None and not (sizes := scanned.num_in.sum(axis=0)).all():
        raise ValueError(
            f"each of the {num_shards} shards by hash must have an item of the {scanned.num_items}, got none for shard "
            f"{int(sizes.argmin())}: take fewer shards, or shard by position"
        )
    if not own.stores_directions:
        check_codes(scanned.num_zero)
    indexing.check(own, scanned.num_items)
    if own.keeps_texts and not corpus.has_texts:
        raise ValueError(
            f"keep_texts needs items with texts, got run {run!r} of {run_config.name}, whose items have none"
        )
    version = options.version or timed_name(run_config.name)
    texts = None
    if options.query_encoder is not None:
        width = own.trained_model(runs.weights(store, found)).vector_width
        texts = query_encoder_file(options.query_encoder, width)
    fitting = Fitting(
        storage=store,
        folder=manifest.folder_of(version),
        run=found,
        corpus=corpus,
        new_codes=options.new_codes,
        remotely=partial(executor.remotely, on_progress=on_progress),
        training_queries=partial(training_queries, trained, str(store)),
        files=scanned.files,
    )
    artefact = own.fit(fitting)
    use_gpu = options.use_gpu
    if not own.encodes_inputs:
        use_gpu = False  # nothing is left to compute
    elif use_gpu is None:
        use_gpu = executor.has_gpus(whole_gpus(options.num_workers, options.worker_gpus))
    num_gpus = options.worker_gpus if use_gpu else 0.0

    weights_sha256 = digest_of_weights(found)
    parts.begin(
        store,
        version,
        {
            "run": run,
            "weights": weights_sha256,
            **({"attributes": json.dumps(attributes)} if attributes else {}),
            "items": scanned.digest,
            "num_shards": num_shards,
            "shard_by": options.shard_by,
            "part_items": part_items,
            "stored": own.storing,
            "exclude_seen": run_config.data.exclude_seen,
            **({"zero_vectors": "keep"} if newer.zero_vectors == "keep" else {}),
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
    planned, tasks = _plan(scanned, num_shards, part_items, options.num_workers, written)
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
        attributes=tuple(attributes),
    )
    if tasks:
        items_done = partial(_items_done, store, version, planned)
        executor.write(work, options.num_workers, num_gpus, items_done, on_progress)

    def indexes_of(encoded: Encoded) -> list[IndexEntry]:
        tell(scanned.num_items, scanned.num_items, "items, building indexes" if own.index_names else "items")
        return indexing.build(executor.each, store, encoded, config_json)

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
        attributes=attributes,
        data_sha256=scanned.digest,
        read_files=_read_files(corpus.items, scanned.files),
        indexes_of=indexes_of,
    )


def whole_gpus(num_workers: int, num_gpus: float) -> int:
    """Return the fewest whole GPUs that have room for all workers.

    Args:
        num_gpus: GPUs of each worker: a part of one, or a whole number.
    """
    return math.ceil(num_workers / int(1 / num_gpus)) if num_gpus <= 1 else num_workers * int(num_gpus)


def _read_files(source: ItemFiles | ListedItems, files: Sequence[FileRows]) -> dict[str, str]:
    """The files of the items, for the version's watermark."""
    if not isinstance(source, ItemFiles):
        return {}
    return {f"{source.table.root}/{own.path}": own.tag for own in files}


def _items_done(storage: Storage, version: str, planned: Sequence[PlannedPart], encoded: Shown) -> tuple[int, int, str]:
    """Count the items of written parts, and those that are encoded for parts that are not."""
    written = parts.rows_written(storage, version)
    done = sum(
        part.num_items if part.first_row in written else encoded.get(str(part.first_row), (0, 0, ""))[0]
        for part in planned
    )
    return done, sum(part.num_items for part in planned), "items"


def scan(executor: Executor, source: ItemFiles | ListedItems, part_items: int, num_shards: int | None) -> Scanned:
    """Check every item, a task a file.

    Args:
        num_shards: shards to count items in, by hash; None to count none.

    Raises:
        NotFoundError, ValueError: as `ItemSource.scan`, and if an id occurs twice.
    """
    together = partial(_together, source, part_items, num_shards)
    found: Scanned = executor.gathered(together, source.scan, [(number,) for number in range(source.num_files)])
    return found


def _together(source: ItemSource, part_items: int, num_shards: int | None, *scans: CorpusScan) -> Scanned:
    check_distinct(source, scans)
    num_zero = check_zeros(source, scans)
    num_in = None
    if num_shards is not None:
        shards = shards_of(keys_of_all(scans), num_shards)
        tasks = np.arange(len(shards)) // part_items
        counts = np.bincount(tasks * num_shards + shards, minlength=(int(tasks[-1]) + 1) * num_shards)
        num_in = counts.reshape(-1, num_shards)
    return Scanned([scan.rows for scan in scans], digest_of(scans), num_in, num_null_of(scans), num_zero)


def _plan(
    scanned: Scanned, num_shards: int, part_items: int, num_workers: int, written: set[int]
) -> tuple[list[PlannedPart], list[list[Task]]]:
    """All parts by their first rows, and tasks for those that are not written, in groups that are read at once."""
    largest = max(size for file in scanned.files for size in file.row_groups)
    task_rows = max(TASK_PARTS * part_items, largest)
    if num_workers > 1:
        task_rows = min(task_rows, scanned.num_items // (TASKS_PER_WORKER * num_workers))
    if scanned.num_in is not None:
        tasks = parts.tasks_by_hash(scanned.num_in, scanned.num_items, part_items)
        planned = sorted((part for task in tasks for part in task.parts), key=lambda part: part.first_row)
        missing_tasks = [task for task in tasks if {part.first_row for part in task.parts} - written]
        return planned, parts.together(missing_tasks, task_rows)
    planned = parts.plan(parts.even_shards(scanned.num_items, num_shards), part_items)
    missing = [part for part in planned if part.first_row not in written]
    return planned, [[task] for task in parts.tasks_by_position(missing, task_rows)]
