"""How many bytes versions take, where parts and indexes that several of them name are stored once.

Counted is what the record of a version names: neither its calibration and its default search, nor what an encoding left
that was cut off, nor runs and data sets.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import location
from rails_ray.storage.versions import listed


@dataclass(frozen=True)
class VersionUsage:
    """
    size_bytes: all of its files; None if its record cannot be read, or there is none yet.
    own_bytes: the part of it in files that no other version names; None if `size_bytes` is.
    """

    version: str
    state: str
    size_bytes: int | None
    own_bytes: int | None


@dataclass(frozen=True)
class SharedSizes:
    """
    versions: all versions, by name.
    total_bytes: all of their files, each once.
    """

    versions: Sequence[VersionUsage]
    total_bytes: int


def usage(storage: Storage) -> SharedSizes:
    """Count the bytes of all versions, by their records."""
    found = listed(storage)
    files = {own.version: sizes_of(own.described) for own in found if own.described is not None}
    num_names = Counter(path for own in files.values() for path in own)
    sizes = {path: size for own in files.values() for path, size in own.items()}
    counts = {
        version: (sum(own.values()), sum(size for path, size in own.items() if num_names[path] == 1))
        for version, own in files.items()
    }
    return SharedSizes(
        versions=[VersionUsage(own.version, own.state, *counts.get(own.version, (None, None))) for own in found],
        total_bytes=sum(sizes.values()),
    )


def sizes_of(described: Encoded) -> dict[str, int]:
    """The size of each file of a version, by its path in storage."""
    return {location(described.home, entry): entry.size_bytes for entry in described.entries}


def size_of(described: Encoded) -> int:
    """The size of all files of a version, each counted once."""
    return sum(sizes_of(described).values())
