"""The parts of a version during encoding: planned, then written one by one, never twice.

Each attempt writes a part under a unique name, then its record, versions/<version>/parts/<first row>.json, unless that
exists. If two attempts write the same items, the record names one; nothing reads the other's file. Interrupted encoding
resumes with the parts that have no record yet.
"""

import dataclasses
import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rails_ray.errors import ConflictError, DamagedError, NotFoundError
from rails_ray.item_ids import ItemId
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.manifest import Encoded, PartEntry, describe, folder_of, read_json, write_encoded

RECORD = re.compile(r"(\d{12})\.json")


@dataclass(frozen=True)
class PlannedPart:
    """Items first_row .. first_row + num_items - 1 of the corpus, all of one shard."""

    shard: int
    first_row: int
    num_items: int


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


class PartsByItem:
    """Planned parts by their first and last items, to find the part of a block of items.

    Args:
        item_ids: ids of the whole corpus.
    """

    def __init__(self, planned: Iterable[PlannedPart], item_ids: pa.ChunkedArray) -> None:
        self.parts = {
            item_ids[part.first_row].as_py(): (part, item_ids[part.first_row + part.num_items - 1].as_py())
            for part in planned
        }

    def of(self, item_ids: Sequence[ItemId]) -> PlannedPart:
        """Raises:
        RuntimeError: if the items are not exactly one part: Ray Data has split them differently.
        """
        part, last = self.parts.get(item_ids[0], (None, None))
        if part is None or len(item_ids) != part.num_items or item_ids[-1] != last:
            raise RuntimeError(
                f"a block must hold the items of a planned part, {part}, got {len(item_ids)} items "
                f"from {item_ids[0]!r} to {item_ids[-1]!r}"
            )
        return part


def begin(storage: Storage, version: str, made_from: dict[str, str | int]) -> None:
    """Reserve a version's name, unless encoding of the same version has begun.

    Args:
        made_from: everything that decides the bytes of the parts, or digests of it.

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
    """Write a part and its record. If another attempt was first, keep its part."""
    name = f"shard-{planned.shard:03d}/part-{planned.first_row:012d}-{uuid.uuid4().hex[:8]}.parquet"
    data = parquet.part_to_bytes(part)
    storage.write(f"{folder_of(version)}/{name}", data)
    entry = PartEntry(**dataclasses.asdict(describe(name, data)), **dataclasses.asdict(planned))
    columns = {field.name: str(field.type) for field in part.schema}
    state = dataclasses.asdict(parquet.state_entry(part))
    record = {"part": dataclasses.asdict(entry), "columns": columns, "state": state}
    try:
        storage.create(_record(version, planned), json.dumps(record, indent=1).encode())
    except ConflictError:
        storage.delete(f"{folder_of(version)}/{name}")


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
) -> Encoded:
    """Write the files beside the parts, and the record of the version, which can then be published.

    Args:
        query, cutoff_mass: as in `Encoded`.
        files: names and contents; memory holds one at a time.

    Raises:
        DamagedError: if a part has no record, or stores its items differently from the others.
    """
    beside = []
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
    shard_items = [0] * (planned[-1].shard + 1)
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
    )
    write_encoded(storage, encoded)
    return encoded


def _record(version: str, planned: PlannedPart) -> str:
    return f"{folder_of(version)}/parts/{planned.first_row:012d}.json"
