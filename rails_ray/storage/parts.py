"""The parts of a version during encoding: planned, then written one by one, never twice.

Shards hold items by their position, in runs of consecutive items, or by a hash of their ids, so that an item stays in
its shard when others come and go. A task reads consecutive items and makes them into parts: of one shard by position,
of each shard by hash.

A part is an object that is named by its content; then its record, versions/<version>/parts/<first row>.json, is written
unless that exists. Interrupted encoding resumes with the parts that have no record yet.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.errors import ConflictError, DamagedError, NotFoundError
from rails_ray.storage import parquet, watermarks
from rails_ray.storage.described import Encoded, FileEntry, IndexEntry, PartEntry
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.manifest import describe, folder_of, read_json, write_encoded, write_object

PART_ITEMS = 2**14  # in a part: seconds of work for a CPU, tens of megabytes for a mixture
RECORD = re.compile(r"(\d{12})\.json")


@dataclass(frozen=True)
class PlannedPart:
    """Items first_row .. first_row + num_items - 1 of the version, all of one shard."""

    shard: int
    first_row: int
    num_items: int


@dataclass(frozen=True)
class Task:
    """Parts that are made of consecutive items.

    first_row, num_rows: the items, by their position in the data.
    is_by_hash: whether the parts are the items of each shard, by hash; else they follow one another.
    """

    first_row: int
    num_rows: int
    parts: tuple[PlannedPart, ...]
    is_by_hash: bool = False


def even_shards(num_items: int, num_shards: int) -> list[int]:
    """Items in each shard: sizes differ by at most one, larger shards first."""
    size, larger = divmod(num_items, num_shards)
    return [size + (shard < larger) for shard in range(num_shards)]


def plan(shard_items: list[int], part_items: int) -> list[PlannedPart]:
    """Split the shards into parts of at most `part_items` items."""
    ends = np.cumsum(shard_items).tolist()
    return [
        PlannedPart(shard, first, min(part_items, end - first))
        for shard, (size, end) in enumerate(zip(shard_items, ends, strict=True))
        for first in range(end - size, end, part_items)
    ]


def tasks_by_position(planned: Sequence[PlannedPart], task_rows: int) -> list[Task]:
    """Consecutive parts as tasks of about `task_rows` items, at least a part each."""
    tasks, run = list[Task](), list[PlannedPart]()
    for part in planned:
        end = run[-1].first_row + run[-1].num_items if run else None
        if run and (part.first_row != end or part.first_row + part.num_items - run[0].first_row > task_rows):
            tasks.append(_task(run))
            run = []
        run.append(part)
    return [*tasks, _task(run)] if run else tasks


def _task(run: list[PlannedPart]) -> Task:
    return Task(run[0].first_row, sum(part.num_items for part in run), tuple(run))


def tasks_by_hash(num_in: NDArray[np.int64], num_items: int, task_rows: int) -> list[Task]:
    """Every `task_rows` items as a task, with a part for each shard that some of them belong to.

    Args:
        num_in: how many of the items of each task belong to each shard [tasks, shards].
    """
    sizes = num_in.sum(axis=0)
    first_rows = np.cumsum(sizes) - sizes + np.cumsum(num_in, axis=0) - num_in  # of each task's part of each shard
    return [
        Task(
            number * task_rows,
            min(task_rows, num_items - number * task_rows),
            tuple(
                PlannedPart(shard, int(first_rows[number, shard]), int(num_in[number, shard]))
                for shard in np.flatnonzero(num_in[number]).tolist()
            ),
            is_by_hash=True,
        )
        for number in range(len(num_in))
    ]


def together(tasks: Sequence[Task], task_rows: int) -> list[list[Task]]:
    """Groups of tasks that follow one another, to read their items at once: at most `task_rows` items, or one task."""
    groups = list[list[Task]]()
    for task in tasks:
        group, end = groups[-1] if groups else [], task.first_row + task.num_rows
        if (
            group
            and group[-1].first_row + group[-1].num_rows == task.first_row
            and end - group[0].first_row <= task_rows
        ):
            group.append(task)
        else:
            groups.append([task])
    return groups


def shards_of(keys: NDArray[np.integer], num_shards: int) -> NDArray[np.int64]:
    """The shard of each item by hash.

    Args:
        keys: a number for each item (`ids.keys_of`); neighbours get shards that have nothing to do with each other.
    """
    mixed = keys.astype(np.uint64)  # the finaliser of SplitMix64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(num_shards)).astype(np.int64)


def begin(storage: Storage, version: str, made_from: dict[str, str | int | None]) -> None:
    """Reserve a version's name, unless encoding of the same version has begun.

    Args:
        made_from: everything that decides the bytes of the parts and of the config, or digests of it; None for what is
            left open.

    Raises:
        ValueError: if the name cannot be a folder's, or another version has it.
    """
    if not NAME.fullmatch(version):
        raise ValueError(f"version must be made of letters, digits, '.', '_' and '-', got {version!r}")
    path = f"{folder_of(version)}/begun.json"
    try:
        storage.create(path, json.dumps(made_from, indent=1).encode())
    except ConflictError:
        begun = read_json(storage, path)
        changed = [name for name in made_from if begun.get(name) != made_from[name]]
        if changed:
            old, new = begun.get(changed[0]), made_from[changed[0]]
            raise ValueError(
                f"version {version!r} must keep the {changed[0]} that it was begun with, {old}, got {new}: "
                "choose another --version"
            ) from None


def is_finished(storage: Storage, version: str) -> bool:
    return storage.exists(f"{folder_of(version)}/encoded.json")


def write_part(storage: Storage, version: str, planned: PlannedPart, part: pa.Table) -> None:
    """Write a part and its record, unless another attempt was first."""
    written = write_object(storage, parquet.part_to_bytes(part))
    entry = PartEntry(**dataclasses.asdict(written), **dataclasses.asdict(planned))
    columns = {field.name: str(field.type) for field in part.schema}
    state = dataclasses.asdict(parquet.state_entry(part))
    record = {"part": dataclasses.asdict(entry), "columns": columns, "state": state}
    with suppress(ConflictError):
        storage.create(_record(version, planned), json.dumps(record, indent=1).encode())


def rows_written(storage: Storage, version: str) -> set[int]:
    """The first row of each part that has a record."""
    found = (RECORD.fullmatch(name) for name in storage.list(f"{folder_of(version)}/parts"))
    return {int(match[1]) for match in found if match}


def read_part(
    storage: Storage, version: str, planned: PlannedPart
) -> tuple[PartEntry, dict[str, str], parquet.StateEntry]:
    """A written part, with the names and Arrow types of its columns, and how it stores the items' state.

    Raises:
        DamagedError: if the part has no record, or the record names other items.
    """
    try:
        record = read_json(storage, _record(version, planned))
        entry = PartEntry(**record["part"])
        columns: dict[str, str] = record["columns"]
        state = parquet.StateEntry(**record["state"])
    except NotFoundError:
        raise DamagedError(f"version {version} must hold the part of item row {planned.first_row}, got none") from None
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{_record(version, planned)} must be the record of a part, got: {error}") from None
    if PlannedPart(entry.shard, entry.first_row, entry.num_items) != planned:
        raise DamagedError(f"{_record(version, planned)} must name {planned}, got {entry}: choose another --version")
    return entry, columns, state


def finish(
    storage: Storage,
    version: str,
    planned: Sequence[PlannedPart],
    *,
    run: str,
    query: dict[str, str],
    files: Iterable[tuple[str, bytes]],
    cutoff_mass: float | None,
    weights_sha256: Mapping[str, str] = {},
    attributes: Mapping[str, str] | None = None,
    data_sha256: str | None = None,
    read_files: Mapping[str, str] = {},
    indexes_of: Callable[[Encoded], list[IndexEntry]] = lambda encoded: [],
) -> Encoded:
    """Write the files beside the parts, and the record of the version, which can then be published.

    Args:
        query, cutoff_mass, attributes, data_sha256: as in `Encoded`.
        read_files: the tag of each file of the items, for the version's watermark.
        files: names and contents; memory holds one at a time.
        weights_sha256: sha256 of each file of the run's folder to copy, by its path; storage copies them by itself.
        indexes_of: gives the indexes of all shards, from all the rest.

    Raises:
        DamagedError: if a part has no record, or stores its items differently from the others.
        NotFoundError: if the run lacks a file.
    """
    beside = [
        FileEntry(
            path=path, size_bytes=storage.copy(f"runs/{run}/{path}", f"{folder_of(version)}/{path}"), sha256=sha256
        )
        for path, sha256 in weights_sha256.items()
    ]
    for name, content in files:
        storage.write(f"{folder_of(version)}/{name}", content)
        beside.append(describe(name, content))
    entries, columns, states = zip(*(read_part(storage, version, part) for part in planned), strict=True)
    for part, state in zip(planned, states, strict=True):
        if state != states[0]:
            raise DamagedError(
                f"all parts of version {version} must store their items alike, {states[0]}, got {state} for the part "
                f"of item row {part.first_row}: encode a new version"
            )
    shard_items = [0] * (max(part.shard for part in planned) + 1)
    for part in planned:
        shard_items[part.shard] += part.num_items
    encoded = Encoded(
        version=version,
        run=run,
        num_items=sum(shard_items),
        shard_items=shard_items,
        query=query,
        columns=columns[0],
        state=states[0],
        parts=list(entries),
        files=beside,
        cutoff_mass=cutoff_mass,
        attributes=dict(attributes) if attributes else None,
        data_sha256=data_sha256,
        watermark=watermarks.write(storage, read_files) if read_files else None,
    )
    encoded = dataclasses.replace(encoded, indexes=indexes_of(encoded))
    write_encoded(storage, encoded)
    return encoded


def _record(version: str, planned: PlannedPart) -> str:
    return f"{folder_of(version)}/parts/{planned.first_row:012d}.json"
