"""Bring the current version up to date with its data: items of files that it has not read yet, or that have changed.

The files that were read are part of each version (`storage.watermarks`). So a refresh may be carried out every few
minutes and killed at any time: its version becomes current with all items of these files, or with none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from rails_ray.allowed_code import AllowedCode
from rails_ray.data.corpus import ItemFiles
from rails_ray.families import changing
from rails_ray.families.calibrating import recalibrate
from rails_ray.families.changing import Change
from rails_ray.families.config import DataConfig
from rails_ray.families.read_items import corpus_to_add
from rails_ray.families.version import Version
from rails_ray.storage import watermarks
from rails_ray.storage.described import Manifest
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ItemIds

RECALIBRATE_BEYOND = 0.1  # of the items changed since a calibration was made


@dataclass(frozen=True)
class Refreshed:
    """
    change: what became of the version; None if no file is new.
    num_files: files that were read.
    notes: a sentence on all that was left out of them, and on each calibration that could not be made anew.
    num_calibrated: calibrations that were made anew.
    """

    change: Change | None
    num_files: int = 0
    notes: tuple[str, ...] = ()
    num_calibrated: int = 0


def refresh(
    storage: Storage,
    data: DataConfig | None = None,
    *,
    allow_code: Sequence[str] = (),
    recalibrate_beyond: float | None = RECALIBRATE_BEYOND,
    approve: Callable[[Manifest], None] = lambda made: None,
) -> Refreshed:
    """Read the files that the current version has not read, put their items into it, and make the result current.

    An item that the version has is replaced. If two files have an item, the file counts whose name comes later. What
    calibrates the result anew are queries of the version's own data.

    Args:
        data: where the items are; by default where those of the version were.
        recalibrate_beyond: calibrations are made anew, before `approve` is called, if more than this fraction of the
            items has changed since; None for never.
        approve: called with the new version before it becomes current; raises if it must not.

    Raises:
        NotFoundError: if nothing was published, or there is no table of items.
        ConflictError: if others changed the version again and again in the meantime.
        ValueError: if a row is wrong, or the items do not come in files.
    """
    version = Version.published(storage)
    corpus = corpus_to_add(version, data or DataConfig())
    source = corpus.items
    if not isinstance(source, ItemFiles):
        raise ValueError(
            f"items must come in files of their own to be refreshed, got those of version {version.name}, which follow "
            "from interactions: train anew"
        )
    rows = [source.table.rows(number) for number in range(source.num_files)]
    tags = {f"{source.table.root}/{own.path}": own.tag for own in rows}
    known = watermarks.read(storage, version.described)
    fresh = [number for number, (place, tag) in enumerate(tags.items()) if known.get(place) != tag]
    if not fresh:
        return Refreshed(None)
    table = source.table.only(fresh)
    attributes = {name: kind for name, kind in source.attributes.items() if name in table}
    items, num_null = _items_of(replace(source, table=table, attributes=attributes))
    notes = (*corpus.notes, *corpus.null_notes(num_null, items.num_rows))
    if not items.num_rows:
        return Refreshed(None, len(fresh), notes)
    num_calibrated, problems = 0, list[str]()

    def approved(made: Manifest) -> None:
        nonlocal num_calibrated, problems
        if recalibrate_beyond is not None:
            allowed = AllowedCode.given(allow_code)
            num_calibrated, problems = recalibrate(storage, made.version, recalibrate_beyond, allowed)
        approve(made)

    change = changing.add(
        storage,
        items,
        replaces=True,
        allow_code=allow_code,
        read_files={place: tag for number, (place, tag) in enumerate(tags.items()) if number in fresh},
        approve=approved,
    )
    return Refreshed(change, len(fresh), (*notes, *problems), num_calibrated)


def _items_of(source: ItemFiles) -> tuple[pa.Table, Mapping[str, int]]:
    """The items of all files, each once and from the last that has it; and the nulls that are read as empty texts."""
    scans = [source.scan(number) for number in range(source.num_files)]  # which checks every row
    num_null = dict[str, int]()
    for scan in scans:
        for name, count in scan.num_null.items():
            num_null[name] = num_null.get(name, 0) + count
    files = [scan.rows for scan in scans]
    num_rows = sum(own.num_rows for own in files)
    tables = list(source.blocks(files, 0, num_rows)) if num_rows else []
    if not tables:
        return pa.table({"item_id": pa.array([], pa.string())}), num_null
    items = pa.concat_tables(tables)
    last = {own: row for row, own in enumerate(ItemIds(items["item_id"]))}
    kept = np.sort(np.fromiter(last.values(), np.int64, len(last)))
    return items.take(pa.array(kept)), num_null
