"""Files of a shard that are read beside a former search of it, which shares its base if both versions have the same."""

from rails_ray.families.shards import base_of, deltas_of
from rails_ray.families.version import Version
from rails_ray.serving.shard_search import ShardSearch, base_files
from rails_ray.storage.described import IndexEntry, PartEntry


def missing_parts(version: Version, shard: int, former: ShardSearch | None) -> list[PartEntry]:
    """The parts to read: those of the deltas, and those of the base unless the former search has it."""
    deltas = deltas_of(version.described, shard)
    return deltas if _shares_base(version, shard, former) else [*base_of(version.described, shard), *deltas]


def missing_indexes(version: Version, shard: int, former: ShardSearch | None) -> list[IndexEntry]:
    """The indexes to read: none if the former search has them."""
    is_shared = _shares_base(version, shard, former)
    return [] if is_shared else [entry for entry in version.described.indexes if entry.shard == shard]


def missing_bytes(version: Version, shard: int, former: ShardSearch | None) -> int:
    """The size of all files to read, in bytes."""
    entries = (*missing_parts(version, shard, former), *missing_indexes(version, shard, former))
    return sum(entry.size_bytes for entry in entries)


def _shares_base(version: Version, shard: int, former: ShardSearch | None) -> bool:
    return former is not None and former.base_files == base_files(version, shard)
