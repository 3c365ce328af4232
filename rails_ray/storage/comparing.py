"""Compare the items of two versions by what is stored of them.

An item is changed if both versions have its id and any other column of its row differs: title, text, or the bytes of
its state. A part that both versions name, and hide the same items of, is not read. Of the other parts memory holds one,
the ids of those of the first version, and 16 bytes for each of its items.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.counting import advance
from rails_ray.storage import parquet
from rails_ray.storage.described import Encoded, PartEntry
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.hidden import live_rows
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.manifest import read_array
from rails_ray.storage.usage import sizes_of

DIGEST_BYTES = 16  # of an item


@dataclass(frozen=True)
class ItemsDiff:
    """
    num_common: items whose ids both versions have.
    added: ids that the second version alone has, in its order.
    removed: ids that the first version alone has, in its order.
    changed: ids that both have, of items that are stored otherwise, in the order of the second version.
    """

    num_common: int
    added: ItemIds
    removed: ItemIds
    changed: ItemIds


def compare_items(storage: Storage, first: Encoded, second: Encoded) -> ItemsDiff:
    """Find the items that come, go and change between two versions of a storage.

    Raises:
        DamagedError: if a part that one of them alone has is missing or changed.
    """
    shared = {_live_key(part) for part in first.parts} & {_live_key(part) for part in second.parts}
    parts = [_in_order(described, shared) for described in (first, second)]
    num_parts, num_read = sum(map(len, parts)), 0

    def read(described: Encoded, entries: Sequence[PartEntry]) -> Iterator[pa.Table]:
        nonlocal num_read
        for entry in entries:
            table = parquet.read_plain(pa.BufferReader(read_array(storage, described.home, entry)))
            rows = live_rows(storage, described, entry)
            yield table if rows is None else table.take(pa.array(rows))
            num_read += 1
            advance(num_read, num_parts, "parts compared")

    ids, digests = list[pa.ChunkedArray](), [np.empty((0, DIGEST_BYTES), np.uint8)]
    for table in read(first, parts[0]):
        ids.append(table["item_id"])
        digests.append(item_digests(table))
    former, digest = ItemIds(_joined(ids)), np.concatenate(digests)
    is_met = np.zeros(len(former), dtype=bool)
    added, changed = list[pa.ChunkedArray](), list[pa.ChunkedArray]()
    for table in read(second, parts[1]):
        column = ItemIds(table["item_id"])
        rows = former.rows(column) if column.is_integer == former.is_integer else np.full(len(column), -1)
        is_known = rows >= 0
        is_met[rows[is_known]] = True
        is_other = is_known.copy()
        is_other[is_known] = (digest[rows[is_known]] != item_digests(table)[is_known]).any(axis=1)
        added.append(column.column.filter(pa.array(~is_known)))
        changed.append(column.column.filter(pa.array(is_other)))
    num_shared = sum(part.num_live for part in second.parts if _live_key(part) in shared)
    return ItemsDiff(
        num_common=num_shared + int(is_met.sum()),
        added=ItemIds(_joined(added)),
        removed=ItemIds(former.column.filter(pa.array(~is_met))),
        changed=ItemIds(_joined(changed)),
    )


def item_digests(part: pa.Table) -> NDArray[np.uint8]:
    """A digest of each item of a part but for its id, equal for equal values of equal columns [X, 16]."""
    names = sorted(set(part.column_names) - {"item_id"})
    are_vectors = {name: pa.types.is_fixed_size_list(part.schema.field(name).type) for name in names}
    begun = hashlib.blake2b(digest_size=DIGEST_BYTES)
    state = parquet.state_entry(part)
    begun.update(json.dumps([names, state.kind, state.shapes, state.dtypes], sort_keys=True).encode())
    vectors = [parquet.rows_in(part[name]) for name in names if are_vectors[name]]
    columns = [part[name].to_pylist() for name in names if not are_vectors[name]]
    stored = np.concatenate([_bytes_of(rows) for rows in [np.empty((part.num_rows, 0), np.uint8), *vectors]], axis=1)
    found = bytearray()
    for row, values in zip(stored, zip(*columns, strict=True) if columns else [()] * part.num_rows, strict=True):
        own = begun.copy()
        own.update(row.data)
        own.update(repr(values).encode())
        found += own.digest()
    return np.frombuffer(bytes(found), np.uint8).reshape(-1, DIGEST_BYTES)


def shared_bytes(first: Encoded, second: Encoded) -> int:
    """Bytes of the objects that both versions name, which storage holds once."""
    others = sizes_of(second)
    return sum(size for path, size in sizes_of(first).items() if path in others)


def _live_key(part: PartEntry) -> tuple[str, str | None]:
    """Files that decide which items a part shows."""
    return part.sha256, None if part.hidden is None else part.hidden.sha256


def _in_order(described: Encoded, shared: set[tuple[str, str | None]]) -> list[PartEntry]:
    """The parts that are not shared, by their items."""
    own = (part for part in described.parts if _live_key(part) not in shared)
    return sorted(own, key=lambda part: part.first_row)


def _joined(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    chunks = [chunk for column in columns for chunk in column.chunks]
    return pa.chunked_array(chunks, None if chunks else pa.string())


def _bytes_of(rows: NDArray[np.generic]) -> NDArray[np.uint8]:
    """The bytes of each row [X, n]."""
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.shape[1] * rows.itemsize)
