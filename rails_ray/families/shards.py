"""Read the items of a version, every byte checked against the manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from rails_ray.errors import DamagedError
from rails_ray.modules.similarities.states import AnyItems, take
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.indexes.faiss_index import FaissIndex, first_vector
from rails_ray.search.indexes.faiss_on_gpu import on_gpu
from rails_ray.storage import hidden, parquet
from rails_ray.storage.described import Encoded, PartEntry
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.manifest import read_array
from rails_ray.storage.parquet import StateReader


@dataclass(frozen=True)
class Items:
    """Items first_row .. first_row + len(item_ids) - 1 of the corpus; ids, titles and texts as columns.

    hidden: those of them that were deleted or have a newer row, counted from `first_row`, ascending.
    attributes: the columns that filters may name.
    """

    first_row: int
    item_ids: ItemIds
    titles: pa.ChunkedArray | None
    state: AnyItems
    texts: pa.ChunkedArray | None = None
    hidden: NDArray[np.int64] = field(default_factory=lambda: hidden.NO_ROWS)
    attributes: pa.Table | None = None

    def taken(self, rows: NDArray[np.int64]) -> "Items":
        """Some of the items, as if they were all from `first_row` on."""
        ids, titles, texts, attributes = (
            None if column is None else column.take(pa.array(rows))
            for column in (self.item_ids.column, self.titles, self.texts, self.attributes)
        )
        state = take(self.state, torch.from_numpy(rows))
        gone = np.flatnonzero(np.isin(rows, self.hidden))
        return Items(self.first_row, ItemIds(ids), titles, state, texts, gone, attributes)

    def live(self) -> "Items":
        """Those that are not hidden, as if they were all from `first_row` on."""
        return self.taken(np.delete(np.arange(len(self.item_ids)), self.hidden)) if len(self.hidden) else self


def base_of(described: Encoded, shard: int) -> list[PartEntry]:
    """The parts of a shard's base. Raises what `parts_of` does."""
    return [part for part in parts_of(described, [shard]) if part.delta is None]


def deltas_of(described: Encoded, shard: int) -> list[PartEntry]:
    """The parts of a shard's deltas that have an item that is not hidden. Raises what `parts_of` does."""
    return [part for part in parts_of(described, [shard]) if part.delta is not None and part.num_live]


def read_later(
    storage: Storage, described: Encoded, shard: int, state: type[AnyItems], num_components: int | None = None
) -> Items | None:
    """The live items of a shard's deltas; None if there are none. Arguments and errors as of `read_shards`."""
    parts = deltas_of(described, shard)
    return read_parts(storage, described, parts, state, num_components).live() if parts else None


def read_shards(
    storage: Storage,
    described: Encoded,
    shards: Sequence[int],
    state: type[AnyItems],
    num_components: int | None = None,
) -> Items:
    """The items of consecutive shards.

    Args:
        state: kind of the items.
        num_components: P_X that the items must have; None to skip the check.

    Raises:
        ValueError: if there is no such shard.
        DamagedError: if a part is missing or changed, or its items have another number of components.
    """
    return read_parts(storage, described, parts_of(described, shards), state, num_components)


def parts_of(described: Encoded, shards: Sequence[int]) -> list[PartEntry]:
    """The parts of some shards, by their rows.

    Raises:
        ValueError: if there is no such shard.
    """
    num_shards = len(described.shard_items)
    for shard in shards:
        if not 0 <= shard < num_shards:
            raise ValueError(f"shard must be at least 0 and below {num_shards}, got {shard}")
    return sorted((part for part in described.parts if part.shard in shards), key=lambda part: part.first_row)


def read_parts(
    storage: Storage,
    described: Encoded,
    entries: Sequence[PartEntry],
    state: type[AnyItems],
    num_components: int | None = None,
) -> Items:
    """The items of parts, one after the other. Arguments and errors as of `read_shards`."""
    reader, named = StateReader(described.state, state, sum(entry.num_items for entry in entries)), list[pa.Table]()
    for entry in entries:
        part = read_part(storage, described, entry)
        reader.add(part)
        columns = [*parquet.NAMED, *(described.attributes or {})]
        named.append(part.select([name for name in columns if name in part.column_names]))
    items = reader.made()
    if num_components not in (None, items.num_components):
        raise DamagedError(
            f"items of version {described.version} must have {num_components} components, as their similarity has, "
            f"got {items.num_components}: encode a new version"
        )
    names = pa.concat_tables(named).combine_chunks()  # some rows of one chunk are found in a seventh of the time
    titles, texts = (names[name] if name in names.column_names else None for name in parquet.NAMED[1:])
    return Items(
        entries[0].first_row,
        ItemIds(names["item_id"]),
        titles,
        items,
        texts,
        hidden=hidden.of_rows(storage, described, entries),
        attributes=names.select(list(described.attributes)) if described.attributes else None,
    )


def read_indexes(storage: Storage, described: Encoded, shard: int, device: str = "cpu") -> dict[str, VectorIndex]:
    """The indexes of a shard by name, with a copy on the GPU if that is the device.

    Raises:
        DamagedError: if one is missing or changed, or holds other items.
        UnsupportedError: if there is one, but FAISS is not installed.
    """
    found: dict[str, VectorIndex] = {}
    for entry in described.indexes:
        if entry.shard == shard:
            shapes = described.state.shapes
            column = entry.name if entry.name in shapes else "components"  # of one: the average is the component
            base = sum(part.num_items for part in described.parts if part.shard == shard and part.delta is None)
            expected = base, shapes[column][-1]
            place = first_vector(entry.size_bytes, *expected)
            index = FaissIndex.read(read_array(storage, described.home, entry, place), entry.error)
            if (index.num_items, index.width) != expected:
                raise DamagedError(
                    f"index {entry.name} of shard {shard} must hold {expected[0]} items of {expected[1]} numbers, got "
                    f"{index.num_items} of {index.width}: encode a new version"
                )
            found[entry.name] = index if device == "cpu" else on_gpu(index)
    return found


def with_vectors_of(indexes: Mapping[str, VectorIndex], state: AnyItems) -> AnyItems:
    """Items whose vectors are those of the indexes, where both are equal in every bit, so that memory has them once."""
    columns = state.columns()
    for name, index in indexes.items():
        column = name if name in columns else "components"
        vectors, own = getattr(index, "vectors", None), columns.get(column)
        if vectors is None or own is None or own.dtype != vectors.dtype or own.numel() != vectors.numel():
            continue
        if torch.equal(own.view(torch.int32), vectors.view(own.shape).view(torch.int32)):
            columns[column] = vectors.view(own.shape)
    return state.from_columns(columns)


def read_part(storage: Storage, described: Encoded, entry: PartEntry) -> pa.Table:
    """A part of a version.

    Raises:
        DamagedError: if it is missing or changed, stores its items otherwise than the version says, or holds another
            number of them.
    """
    part = parquet.read_plain(pa.BufferReader(read_array(storage, described.home, entry)))
    if parquet.state_entry(part) != described.state:
        raise DamagedError(
            f"{entry.path} must store its items as version {described.version} does, {described.state}, "
            f"got {parquet.state_entry(part)}: encode a new version"
        )
    if part.num_rows != entry.num_items:
        raise DamagedError(
            f"{entry.path} of version {described.version} must hold {entry.num_items} items, got {part.num_rows}: "
            "encode a new version"
        )
    return part
