"""A version that shares its files with the one that it began from, its parent."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pyarrow as pa

from rails_ray.families import calibrations, default_searches
from rails_ray.storage import parquet, versions
from rails_ray.storage.described import Encoded, FileEntry, Manifest, PartEntry
from rails_ray.storage.filesystem import Storage, Tagged
from rails_ray.storage.manifest import folder_of, location, write_object

ATTEMPTS = 8  # of a change that others outrun
NEXT_NAME = re.compile(r"(.+)\.(\d+)-[0-9a-f]{6}")


def publish_after(
    storage: Storage,
    parent: Manifest,
    made: Encoded,
    before: Tagged | None,
    approve: Callable[[Manifest], None] = lambda made: None,
    num_changed: int = 0,
) -> Manifest:
    """Give a version the calibrations and the default search of its parent, then publish it.

    Args:
        before: the pointer to the current version as it was when the parent was read, inside an `intent`.
        approve: called with the version before it becomes current; raises if it must not.
        num_changed: items that it has added, replaced and deleted.

    Raises:
        ConflictError: if another version was published in the meantime.
    """
    calibrations.inherit(storage, parent, made.version, num_changed)
    search = default_searches.read_current(storage, parent.version)
    if search is not None:
        default_searches.write(storage, made.version, search)
    manifest = versions.described_as(made, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", parent.version)
    return versions.publish_change(storage, manifest, before, approve)


def with_parts(parent: Manifest, name: str, parts: Sequence[PartEntry]) -> Encoded:
    """A version of these parts, numbered anew, with the files of its parent."""
    fields = {field: getattr(parent, field) for field in Encoded.__dataclass_fields__}
    numbered, shard_items, first = list[PartEntry](), [0] * len(parent.shard_items), 0
    for part in sorted(parts, key=lambda part: (part.shard, part.delta or 0, part.first_row)):
        numbered.append(replace(part, first_row=first))
        shard_items[part.shard] += part.num_items
        first += part.num_items
    fields |= {"version": name, "base": parent.home, "parts": numbered, "num_items": first, "shard_items": shard_items}
    return Encoded(**fields)


def standing_alone(storage: Storage, parent: Manifest, made: Encoded) -> Encoded:
    """A version with copies of its parent's files beside the parts, so that it does not need the parent's folder."""
    for entry in made.files:
        storage.copy(location(parent.home, entry), f"{folder_of(made.version)}/{entry.path}")
    return replace(made, base=None)


def next_name(parent: Manifest) -> str:
    """A name that nobody else takes: that of the version that was encoded, a number, and a few random letters."""
    found = NEXT_NAME.fullmatch(parent.version)
    first, number = (parent.version, 0) if found is None else (found[1], int(found[2]))
    return f"{first}.{number + 1}-{uuid4().hex[:6]}"


def write_part(storage: Storage, table: pa.Table, shard: int, first_row: int, delta: int | None = None) -> PartEntry:
    """Write a part of a shard, whose rows `with_parts` numbers; parts of one delta stay in the order of `first_row`."""
    written: FileEntry = write_object(storage, parquet.part_to_bytes(table))
    numbers = {"shard": shard, "first_row": first_row, "num_items": table.num_rows, "delta": delta}
    return PartEntry(path=written.path, size_bytes=written.size_bytes, sha256=written.sha256, **numbers)
