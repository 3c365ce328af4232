"""A stored version beside a data set with queries for it: what measures, calibrates and tunes a version reads."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import Queries
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.kept_texts import with_kept_texts
from rails_ray.families.shards import Items
from rails_ray.families.version import Version
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.schema.filters import canonical, parse
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.filtering import passing


@dataclass(frozen=True)
class VersionQueries:
    """A stored version, and a data set with queries for it.

    items: the items that are searched: all that are not hidden, or those of them that a filter passes.
    rows: row of each item of the data set among all, -1 where the version lacks it.
    num_live: number of all items that are not hidden.
    left: rows of `items` among all; None if nothing is filtered.
    filter: the filter that passes these.
    """

    version: str
    config: RunConfig
    model: Model
    items: AnyItems
    cutoff_mass: float | None
    rows: NDArray[np.int64]
    data: DataSet
    num_live: int
    left: NDArray[np.int64] | None = None
    filter: Mapping[str, Any] | None = None

    @staticmethod
    def read(
        store: Storage,
        version: str | None,
        data: DataConfig | None,
        needed: Collection[str],
        allowed: AllowedCode = OURS_ALONE,
        filter: Mapping[str, Any] | None = None,
    ) -> "VersionQueries":
        """Read a version and queries for it.

        Args:
            data: by default the data in the version's config.
            needed: splits that must have a query.
            allowed: code that the version's config may name.
            filter: which items are searched, by their attributes.

        Raises:
            ValueError: if a filter does not fit the attributes, or passes no item.
        """
        opened = Version.encoded(store, version, allowed)
        model, stored = with_kept_texts(opened.model, store), opened.items()
        read = read_data(with_data_of(opened.config, data), store, needed)
        rows = np.concatenate([stored.item_ids.rows(block) for block in read.item_ids.blocks()])
        mass, left = opened.described.cutoff_mass, _passing(opened, stored, filter)
        state = stored.state if left is None else stored.taken(left).state
        own = opened.name, opened.config, model, state, mass, rows, read
        return VersionQueries(*own, len(stored.item_ids), left, filter)

    def queries(self, split: str) -> Queries:
        """The queries of a split, with relevant items as rows of `items`. Queries are left out if the filter
        hides all their relevant items."""
        found = self.data.queries[split].in_corpus(self.rows, self.num_live)
        return found if self.left is None else found.among(self.left, self.num_live)

    def num_left_out(self, split: str) -> int:
        """Number of queries of a split that are left out."""
        return len(self.data.queries[split]) - len(self.queries(split))


def _passing(version: Version, items: Items, filter: Mapping[str, Any] | None) -> NDArray[np.int64] | None:
    """The rows that a filter passes; None for no filter."""
    if not filter:
        return None
    condition = parse(filter, version.described.attributes or {})
    if items.attributes is None:
        raise ValueError(
            f"filter must be left out for a version whose items have no attributes, got {canonical(filter)}"
        )
    rows = np.flatnonzero(passing(condition, items.attributes))
    if not len(rows):
        raise ValueError(
            f"filter must pass an item of version {version.name}, got {canonical(filter)}, which passes none"
        )
    return rows


def with_data_of(run_config: RunConfig, data: DataConfig | None) -> RunConfig:
    """The config of a run, with the data that is named in place of its own."""
    return run_config if data is None else replace(run_config, data=data.over(run_config.data))
