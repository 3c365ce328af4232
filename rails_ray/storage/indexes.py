"""The indexes of a version: a fitted one for the corpus, from it one for each shard, each named by its content.

    versions/<version>/indexes/fitted-<name>.json         the index that is fitted, without items
    versions/<version>/indexes/shard-000-<name>.json      the index of a shard, which `faiss.read_index` opens

Both are records as `parts` has them: one that is there stands, so that indexing resumes with what is missing.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rails_ray.errors import ConflictError, DamagedError, NotFoundError
from rails_ray.storage.described import FileEntry, IndexEntry
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import folder_of, read_json, write_object

RECALL = "recall"  # a field of the record of a shard's index


def write_fitted(storage: Storage, version: str, name: str, data: bytes) -> FileEntry:
    """Store a fitted index, unless there is one. Returns the one that stands."""
    entry = write_object(storage, data)
    _record(storage, f"{folder_of(version)}/indexes/fitted-{name}.json", entry)
    found = read_fitted(storage, version, name)
    assert found is not None
    return found


def copy_fitted(storage: Storage, version: str, name: str, entry: FileEntry) -> None:
    """Let a version have the fitted index of another, unless it has one."""
    _record(storage, f"{folder_of(version)}/indexes/fitted-{name}.json", entry)


def read_fitted(storage: Storage, version: str, name: str) -> FileEntry | None:
    """The fitted index; None if there is none.

    Raises:
        DamagedError: if its record cannot be read.
    """
    try:
        return FileEntry(**read_json(storage, f"{folder_of(version)}/indexes/fitted-{name}.json"))
    except NotFoundError:
        return None
    except TypeError as error:
        raise DamagedError(f"the record of index {name} of version {version} must name a file, got: {error}") from None


def write_built(
    storage: Storage, version: str, shard: int, name: str, data: bytes, error: float, recall: float | None = None
) -> None:
    """Store the index of a shard, unless there is one.

    Args:
        recall: of its ten best items, by a sample; kept in the record alone.
    """
    entry = IndexEntry(**dataclasses.asdict(write_object(storage, data)), shard=shard, name=name, error=error)
    _record(storage, _path(version, shard, name), entry, {} if recall is None else {RECALL: recall})


def read_built(storage: Storage, version: str, shards: int, names: Sequence[str]) -> list[IndexEntry]:
    """The indexes that are stored, of all shards.

    Raises:
        DamagedError: if a record cannot be read.
    """
    found = []
    for shard in range(shards):
        for name in names:
            with suppress(NotFoundError):
                try:
                    record = read_json(storage, _path(version, shard, name))
                    found.append(IndexEntry(**{key: own for key, own in record.items() if key != RECALL}))
                except TypeError as error:
                    raise DamagedError(
                        f"{_path(version, shard, name)} must be the record of an index, got: {error}"
                    ) from None
    return found


def read_recalls(storage: Storage, version: str, entries: Sequence[IndexEntry]) -> dict[str, float]:
    """The least recall of any shard's index by its name, of those that have a record of it."""
    found = dict[str, float]()
    for entry in entries:
        with suppress(NotFoundError):
            recall = read_json(storage, _path(version, entry.shard, entry.name)).get(RECALL)
            if isinstance(recall, float):
                found[entry.name] = min(recall, found.get(entry.name, recall))
    return found


def _path(version: str, shard: int, name: str) -> str:
    return f"{folder_of(version)}/indexes/shard-{shard:03d}-{name}.json"


def _record(storage: Storage, path: str, entry: FileEntry, more: Mapping[str, float] = {}) -> None:
    with suppress(ConflictError):
        storage.create(path, json.dumps({**dataclasses.asdict(entry), **more}, indent=1).encode())
