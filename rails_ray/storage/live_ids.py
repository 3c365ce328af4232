"""Which live items of a version have some ids, and where they are, by reading the ids alone.

A part whose pages have checksums is read by its column of ids, a few bytes an item; one of an earlier release, whole.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage import hidden, parquet
from rails_ray.storage.balance import added, balance_of
from rails_ray.storage.described import Encoded, PartEntry
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ItemIds, keys_of
from rails_ray.storage.manifest import location, read_file


@dataclass(frozen=True)
class FoundIds:
    """
    rows: of each part that has some, by its first row, the rows of live items that have wanted ids, ascending.
    is_found: which of the wanted ids a live item has.
    balance: the balance of all live items.
    """

    rows: dict[int, NDArray[np.int64]]
    is_found: NDArray[np.bool_]
    balance: str


def find(storage: Storage, described: Encoded, wanted: ItemIds) -> FoundIds:
    """Find the live items of a version that have some of these ids, which are all of the version's type.

    Raises:
        DamagedError: if a part is missing or changed.
    """
    rows, is_found, balance = dict[int, NDArray[np.int64]](), np.zeros(len(wanted), np.bool_), balance_of(_no_keys())
    for entry, ids in blocks(storage, described):
        live = hidden.live_rows(storage, described, entry)
        shown = ids if live is None else ids.take(pa.array(live))
        balance = added(balance, balance_of(keys_of(shown)))
        places = _places(shown, wanted)
        is_found[places[places >= 0]] = True
        own = np.flatnonzero(places >= 0)
        if len(own):
            rows[entry.first_row] = own if live is None else live[own]
    return FoundIds(rows, is_found, balance)


def blocks(storage: Storage, described: Encoded) -> Iterator[tuple[PartEntry, pa.ChunkedArray]]:
    """Each part with the ids of all of its rows, hidden ones too. Raises what `find` does."""
    for entry in sorted(described.parts, key=lambda part: part.first_row):
        yield entry, _ids(storage, described, entry)


def check_balance(storage: Storage, described: Encoded) -> str | None:
    """A sentence on live items that are lost or there twice, if the version's balance shows some; None otherwise."""
    if described.balance is None:
        return None
    found = balance_of(_no_keys())
    for entry, ids in blocks(storage, described):
        live = hidden.live_rows(storage, described, entry)
        found = added(found, balance_of(keys_of(ids if live is None else ids.take(pa.array(live)))))
    if found == described.balance:
        return None
    return (
        f"the items of version {described.version} must have the balance of its manifest, {described.balance[:12]}, "
        f"got {found[:12]}: an item is lost, or there twice"
    )


def _ids(storage: Storage, described: Encoded, entry: PartEntry) -> pa.ChunkedArray:
    try:
        with storage.open(location(described.home, entry)) as opened, pq.ParquetFile(opened.file) as file:
            is_checked = parquet.CHECKED.encode() in (file.schema_arrow.metadata or {})
        if is_checked:
            with storage.open(location(described.home, entry)) as opened:
                table = parquet.read_plain(opened.file, ["item_id"], checks_pages=True)
        else:
            table = parquet.read_plain(io.BytesIO(read_file(storage, described.home, entry)), ["item_id"])
        ids: pa.ChunkedArray = table["item_id"]
    except (NotFoundError, pa.ArrowException, OSError, KeyError) as error:
        raise DamagedError(
            f"{entry.path} of version {described.version} must be as it was written, got: {error}: restore it"
        ) from None
    if len(ids) != entry.num_items:
        raise DamagedError(
            f"{entry.path} of version {described.version} must hold {entry.num_items} items, got {len(ids)}: restore it"
        )
    return ids


def _places(ids: pa.ChunkedArray, wanted: ItemIds) -> NDArray[np.int64]:
    """The place of each id among the wanted ones, or -1. Python compares those alone that have equal keys."""
    keys, sought = keys_of(ids), np.sort(keys_of(wanted.column))
    nearest = np.minimum(np.searchsorted(sought, keys), max(len(sought) - 1, 0))
    may_be = np.flatnonzero(sought[nearest] == keys) if len(sought) else np.empty(0, np.int64)
    found = np.full(len(ids), -1, np.int64)
    found[may_be] = wanted.rows(ids.take(pa.array(may_be)).to_pylist())
    return found


def _no_keys() -> NDArray[np.int64]:
    return np.empty(0, np.int64)
