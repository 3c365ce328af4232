"""Build the indexes of a version: fitted once to a sample of its items, then built for each shard.

Both read the parts that encoding has written, a part at a time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rails_ray.families import config
from rails_ray.families.registry import served_family
from rails_ray.families.served_family import ServedFamily
from rails_ray.families.shards import read_part
from rails_ray.search.indexes import faiss_building
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.search.indexes.recall import sampled_recall
from rails_ray.storage import indexes, manifest
from rails_ray.storage.described import Encoded, IndexEntry, PartEntry
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import item_state

SAMPLE_ITEMS = 200_000  # what k-means needs for the lists of 1.6 million items, 39 each; 51 MB of 64 numbers
SAMPLE_PARTS = 64  # the sample comes from so many parts at least, as neighbours may be alike


Each = Callable[[Callable[..., None], Sequence[Sequence[Any]]], None]
"""Calls a function with each list of arguments, as tasks."""


def build(each: Each, storage: Storage, described: Encoded, config_json: bytes) -> list[IndexEntry]:
    """The indexes of all shards. Those that are stored already are left as they are.

    Raises:
        ValueError: if an index cannot be made of these items.
        UnsupportedError: without FAISS.
    """
    own, root, version = served_family(config.from_json(config_json)), str(storage), described.version
    names, num_shards = own.index_names, len(described.shard_items)
    stored = {(entry.shard, entry.name) for entry in indexes.read_built(storage, version, num_shards, names)}
    missing = [(shard, name) for name in names for shard in range(num_shards) if (shard, name) not in stored]
    described_as = (root, described, config_json)
    each(_fit, [(*described_as, name) for name in names if any(name == other for _, other in missing)])
    each(_build, [(*described_as, shard, name) for shard, name in missing])
    return indexes.read_built(storage, version, num_shards, names)


def _fit(root: str, described: Encoded, config_json: bytes, name: str) -> None:
    storage, own = Storage(root), served_family(config.from_json(config_json))
    if indexes.read_fitted(storage, described.version, name) is None:
        assert own.index_config is not None
        of_some = sample(storage, described, own, name)
        data = faiss_building.fit(own.index_config, of_some, max(described.shard_items), own.config.seed)
        indexes.write_fitted(storage, described.version, name, data)


def sample(storage: Storage, described: Encoded, own: ServedFamily, name: str) -> torch.Tensor:
    """Vectors of about SAMPLE_ITEMS items that are drawn from at least SAMPLE_PARTS parts, or all of them."""
    parts = sorted(described.parts, key=lambda entry: entry.first_row)
    generator = np.random.default_rng(own.config.seed)
    order = generator.permutation(len(parts))
    sizes = np.array([parts[number].num_items for number in order])
    num_parts = max(SAMPLE_PARTS, int(np.searchsorted(sizes.cumsum(), SAMPLE_ITEMS)) + 1)
    share = min(SAMPLE_ITEMS / sizes[:num_parts].sum(), 1.0)
    some = []
    for number in sorted(order[:num_parts]):
        vectors = _vectors(storage, described, own, parts[number], name)
        rows = np.sort(generator.permutation(len(vectors))[: math.ceil(share * len(vectors))])
        some.append(vectors[torch.from_numpy(rows)])
    return torch.cat(some)


def _build(root: str, described: Encoded, config_json: bytes, shard: int, name: str) -> None:
    storage, own = Storage(root), served_family(config.from_json(config_json))
    fitted = indexes.read_fitted(storage, described.version, name)
    assert fitted is not None
    parts = sorted((part for part in described.parts if part.shard == shard), key=lambda entry: entry.first_row)
    data = manifest.read_file(storage, described.version, fitted)

    def blocks() -> Iterator[torch.Tensor]:
        return (_vectors(storage, described, own, entry, name) for entry in parts)

    made = faiss_building.build(data, blocks())
    recall = sampled_recall(FaissIndex.read(*made), blocks, described.shard_items[shard])
    indexes.write_built(storage, described.version, shard, name, *made, recall)


def _vectors(storage: Storage, described: Encoded, own: ServedFamily, entry: PartEntry, name: str) -> torch.Tensor:
    return own.indexed(item_state(read_part(storage, described, entry), own.item_state), name)


def check(own: ServedFamily, num_items: int) -> None:
    """Check before any work that the indexes of a version can be built.

    Raises:
        ValueError: if they cannot be made of so many items.
        UnsupportedError: without FAISS.
    """
    if own.index_config is not None:
        faiss_building.check(own.index_config, num_items, min(num_items, SAMPLE_ITEMS))
