"""Compaction: a version whose items are all in its base, and none of them hidden.

Parts that are whole stay as they are. Nothing is renumbered in an index: it is built anew. The version stands alone: it
has copies of the files beside the parts, so that the versions before it may be collected.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from rails_ray.allowed_code import AllowedCode
from rails_ray.counting import advance
from rails_ray.errors import ConflictError
from rails_ray.families import indexing
from rails_ray.families.in_process import InProcess
from rails_ray.families.next_version import ATTEMPTS, next_name, publish_after, standing_alone, with_parts, write_part
from rails_ray.families.shards import read_part
from rails_ray.families.version import Version
from rails_ray.storage import hidden, indexes, versions
from rails_ray.storage.described import Encoded, Manifest, PartEntry
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.intents import intent
from rails_ray.storage.manifest import CONFIG
from rails_ray.storage.parts import PART_ITEMS

SMALL = 0.25  # of a part's usual items: fewer are written with others


def compact(storage: Storage, *, allow_code: Sequence[str] = ()) -> Manifest:
    """Write the current version's items anew where something is hidden or in deltas, with new indexes, and make the
    result current. A version without deltas and hidden rows stays as it is.

    Raises:
        NotFoundError: if nothing was published.
        ConflictError: if others changed the version again and again in the meantime.
    """
    for _ in range(ATTEMPTS):
        try:
            with intent(storage, "compaction", versions.CURRENT) as before:
                version = Version.published(storage, None, AllowedCode.given(allow_code))
                made = _compacted_version(storage, version)
                return version.manifest if made is None else publish_after(storage, version.manifest, made, before)
        except ConflictError as error:
            outrun = error
    raise outrun


def _compacted_version(storage: Storage, version: Version) -> Encoded | None:
    """Write the parts and indexes of a compacted version; None if nothing is to be done."""
    parent = version.manifest
    live = parent.live_items
    has_deltas = any(part.delta is not None for part in parent.parts)
    if not has_deltas and all(_is_whole(part) or not live[part.shard] for part in parent.parts):
        return None
    name = next_name(parent)
    parts = list(_compacted(storage, parent))
    made = standing_alone(storage, parent, replace(with_parts(parent, name, parts), indexes=[]))
    if not version.family.index_names:
        return made
    _copy_fitted(storage, parent, name, version.family.index_names)
    return replace(made, indexes=indexing.build(InProcess().each, storage, made, version.file(CONFIG)))


def _compacted(storage: Storage, parent: Manifest) -> Iterator[PartEntry]:
    """The parts of the live items, each in its shard: whole parts stay, others are written anew, and small ones and
    deltas as one. No shard may be empty: one of which nothing is left keeps a part whose items are hidden."""
    num_done = 0
    for shard in range(len(parent.shard_items)):
        small, num_parts = list[pa.Table](), 0
        parts = sorted((part for part in parent.parts if part.shard == shard), key=lambda part: part.first_row)
        for part in parts:
            num_done += part.num_items
            advance(num_done, parent.num_items, "items, writing parts")
            if _is_whole(part):
                yield part
                num_parts += 1
                continue
            table, rows = read_part(storage, parent, part), hidden.live_rows(storage, parent, part)
            table = table if rows is None else table.take(pa.array(rows))
            if part.delta is None and table.num_rows >= SMALL * PART_ITEMS:
                yield write_part(storage, table, shard, part.first_row)
                num_parts += 1
            elif table.num_rows:
                small.append(table)
        if small:
            joined = pa.concat_tables(small)
            for first in range(0, joined.num_rows, PART_ITEMS):
                yield write_part(storage, joined.slice(first, PART_ITEMS), shard, parent.num_items + first)
        elif not num_parts:
            yield parts[0]


def _is_whole(part: PartEntry) -> bool:
    return part.delta is None and part.hidden is None


def _copy_fitted(storage: Storage, parent: Manifest, name: str, names: Sequence[str]) -> None:
    """Build the indexes of a compaction from what was fitted for its base."""
    for own in names:
        for former in (parent.version, parent.home):
            fitted = indexes.read_fitted(storage, former, own)
            if fitted is not None:
                indexes.copy_fitted(storage, name, own, fitted)
                break
