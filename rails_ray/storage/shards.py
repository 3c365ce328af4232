"""Read the items of a version, every byte checked against the manifest."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from rails_ray.errors import DamagedError
from rails_ray.similarities.states import AnyItems
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import Encoded, read_file


@dataclass(frozen=True)
class Items:
    """Items first_row .. first_row + len(item_ids) - 1 of the corpus."""

    first_row: int
    item_ids: list[str] | list[int]
    titles: list[str] | None
    state: AnyItems


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
    num_shards = len(described.shard_items)
    for shard in shards:
        if not 0 <= shard < num_shards:
            raise ValueError(f"shard must be at least 0 and below {num_shards}, got {shard}")
    entries = [part for part in described.parts if part.shard in shards]
    entries.sort(key=lambda part: part.first_row)
    part = pa.concat_tables(
        pq.read_table(io.BytesIO(read_file(storage, described.version, entry))) for entry in entries
    )
    items = parquet.item_state(part, state)
    if num_components not in (None, items.num_components):
        raise DamagedError(
            f"items of version {described.version} must have {num_components} components, as their similarity has, "
            f"got {items.num_components}: encode a new version"
        )
    titles = part["title"].to_pylist() if "title" in part.column_names else None
    return Items(entries[0].first_row, part["item_id"].to_pylist(), titles, items)
