"""Items that come and go: a new version that shares all with the current one but a delta and hidden rows.

    add      a delta of new items                     v1 -> v1.1-3f2a
    upsert   the same; items that were there are hidden
    delete   hidden rows

Items are encoded by the version's own model, with its codebooks, or codes as its family chooses them. A change is read
from the pointer to the current version and ends by replacing it; if another was faster, it begins again from that one,
with what is encoded already. A version is immutable: what fails on the way leaves objects that no manifest names.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from rails_ray.allowed_code import AllowedCode
from rails_ray.errors import ConflictError, DamagedError
from rails_ray.families.added_items import checked_ids, encoded_parts, id_type
from rails_ray.families.next_version import ATTEMPTS, next_name, publish_after, with_parts, write_part
from rails_ray.families.version import Version
from rails_ray.item_ids import ItemId, is_unicode
from rails_ray.schema.fields import check_ids, listed
from rails_ray.storage import hidden, live_ids, versions, watermarks
from rails_ray.storage.balance import added, balance_of, removed
from rails_ray.storage.described import Encoded, Manifest, PartEntry
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import DIGITS, ItemIds, keys_of
from rails_ray.storage.intents import intent


@dataclass(frozen=True)
class Change:
    """
    manifest: the version that is now current.
    num_added: items that were not there before.
    num_replaced: items that have a newer row now.
    num_deleted: items that are gone.
    num_unknown: ids to delete that no item has.
    """

    manifest: Manifest
    num_added: int = 0
    num_replaced: int = 0
    num_deleted: int = 0
    num_unknown: int = 0


def add(
    storage: Storage,
    items: pa.Table,
    *,
    replaces: bool = False,
    allow_code: Sequence[str] = (),
    read_files: Mapping[str, str] = {},
    approve: Callable[[Manifest], None] = lambda made: None,
    opened: Callable[[], Version] | None = None,
) -> Change:
    """Add items to the current version, and make the result current.

    Args:
        items: item_id; input, a text or a vector, unless the model reads none; title, if the version has titles; its
            attributes.
        replaces: whether items may be there already, and are then replaced.
        read_files: the files that have them, for the version's watermark.
        approve: called with the new version before it becomes current; raises if it must not.
        opened: opens the current version, with what is kept of its model; by default nothing is.

    Raises:
        NotFoundError: if nothing was published.
        ConflictError: if others changed the version again and again in the meantime.
        ValueError: if an id occurs twice, is of another type than those of the version, or is there already although
            nothing is to be replaced; or if the model cannot encode these items.
    """
    encoded = dict[str, list[pa.Table]]()

    def changed(version: Version) -> Change | _Draft:
        wanted = checked_ids(version, items)
        found = live_ids.find(storage, version.described, wanted)
        if found.is_found.any() and not replaces:
            first = wanted[int(np.flatnonzero(found.is_found)[0])]
            raise ValueError(
                f"items to add must be new to version {version.name}, got {int(found.is_found.sum()):,} of "
                f"{len(wanted):,} that it has, first {first!r}: replace them with upsert"
            )
        home = version.described.home
        if home not in encoded:
            encoded[home] = list(encoded_parts(version, items))
        num_replaced = int(found.is_found.sum())
        counts = {"num_added": len(wanted) - num_replaced, "num_replaced": num_replaced}
        return _Draft(found, wanted, encoded[home], counts)

    opened = opened or partial(_opened, storage, allow_code)
    return _carried_out(storage, changed, opened, read_files, approve)


def delete(storage: Storage, item_ids: Iterable[Any], *, allow_code: Sequence[str] = ()) -> Change:
    """Delete items from the current version, and make the result current. Ids that no item has are counted.

    Raises:
        NotFoundError: if nothing was published.
        ConflictError: if others changed the version again and again in the meantime.
        ValueError: if no item would be left, or the ids are no list.
    """
    given = listed(item_ids, "ids", in_order=False)
    check_ids(given)

    def changed(version: Version) -> Change | _Draft:
        kind = id_type(version)
        wanted = ItemIds(pa.chunked_array([_ids_of_type(given, kind)], kind))
        found = live_ids.find(storage, version.described, wanted)
        num_deleted, num_given = int(found.is_found.sum()), len(dict.fromkeys(given))
        if num_deleted == version.described.num_live:
            raise ValueError(
                f"an item of version {version.name} must be left, got all {num_deleted:,} to delete: publish another "
                "version in its place"
            )
        counts = {"num_deleted": num_deleted, "num_unknown": num_given - num_deleted}
        if not num_deleted:
            return Change(version.manifest, **counts)
        return _Draft(found, wanted, [], counts)

    return _carried_out(storage, changed, partial(_opened, storage, allow_code))


def _opened(storage: Storage, allow_code: Sequence[str]) -> Version:
    return Version.published(storage, None, AllowedCode.given(allow_code))


@dataclass(frozen=True)
class _Draft:
    """A change that is not carried out yet.

    found: the live items that are to be hidden.
    ids: ids of the items to add or to delete, of which `found` says which are there.
    new: the parts of a delta.
    """

    found: live_ids.FoundIds
    ids: ItemIds
    new: Sequence[pa.Table]
    counts: dict[str, int]

    @property
    def num_changed(self) -> int:
        """Number of items that are added, replaced and deleted."""
        return sum(number for name, number in self.counts.items() if name != "num_unknown")


def _carried_out(
    storage: Storage,
    changed: Callable[[Version], Change | _Draft],
    opened: Callable[[], Version],
    read_files: Mapping[str, str] = {},
    approve: Callable[[Manifest], None] = lambda made: None,
) -> Change:
    storage.check_conditional()
    for _ in range(ATTEMPTS):
        try:
            with intent(storage, "change of items", versions.CURRENT) as before:
                version = opened()
                parent, draft = version.manifest, changed(version)
                if isinstance(draft, Change):
                    return draft
                made = _made(storage, parent, draft, read_files)
                manifest = publish_after(storage, parent, made, before, approve, draft.num_changed)
                return Change(manifest, **draft.counts)
        except ConflictError as error:
            outrun = error
    raise outrun


def _made(storage: Storage, parent: Manifest, draft: _Draft, read_files: Mapping[str, str]) -> Encoded:
    """Write the objects of a changed version.

    Raises:
        DamagedError: if the parent has not the items that its manifest says.
    """
    if parent.balance not in (None, draft.found.balance):
        raise DamagedError(
            f"the items of version {parent.version} must have the balance of its manifest, got another: an item is "
            "lost, or there twice; see `rails-ray index verify`"
        )
    parts = _hiding(storage, parent, draft.found) + _new_parts(storage, parent, draft.new)
    gone = draft.ids.column.filter(pa.array(draft.found.is_found))
    balance = removed(draft.found.balance, balance_of(keys_of(gone)))
    for part in draft.new:
        balance = added(balance, balance_of(keys_of(part["item_id"])))
    made = replace(with_parts(parent, next_name(parent), parts), balance=balance)
    if not read_files:
        return made
    tags = {**watermarks.read(storage, parent), **read_files}
    return replace(made, watermark=watermarks.write(storage, tags))


def _hiding(storage: Storage, parent: Manifest, found: live_ids.FoundIds) -> list[PartEntry]:
    """The parent's parts, with the found rows hidden too."""
    parts = list[PartEntry]()
    for part in parent.parts:
        if part.first_row in found.rows:
            rows = np.union1d(hidden.read(storage, parent, part), found.rows[part.first_row])
            part = replace(part, hidden=hidden.write(storage, rows))
        parts.append(part)
    return parts


def _new_parts(storage: Storage, parent: Manifest, tables: Sequence[pa.Table]) -> list[PartEntry]:
    """Write the parts of a delta, each to the shard that has the fewest items."""
    delta, sizes = max((part.delta or 0 for part in parent.parts), default=0) + 1, parent.live_items
    parts = list[PartEntry]()
    for table in tables:
        shard = int(np.argmin(sizes))
        sizes[shard] += table.num_rows
        parts.append(write_part(storage, table, shard, parent.num_items + len(parts), delta))
    return parts


def _ids_of_type(item_ids: Sequence[ItemId], kind: pa.DataType) -> pa.Array:
    """Those that can be ids of a version, each once: integers may be given in decimal digits."""
    distinct = dict.fromkeys(item_ids)
    if not pa.types.is_integer(kind):
        return pa.array([own for own in distinct if isinstance(own, str) and is_unicode(own)], kind)
    numbers = [own for own in map(_as_integer, distinct) if own is not None]
    least, most = (np.iinfo(kind.to_pandas_dtype()).min, np.iinfo(kind.to_pandas_dtype()).max)
    return pa.array(list(dict.fromkeys(own for own in numbers if least <= own <= most)), kind)


def _as_integer(own: ItemId) -> int | None:
    is_digits = isinstance(own, str) and DIGITS.fullmatch(own) is not None
    return int(own) if is_digits or isinstance(own, int) else None
