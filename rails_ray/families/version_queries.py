"""A stored version beside a data set with queries for it: what measures, calibrates and tunes a version reads."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import Queries
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.kept_texts import with_kept_texts
from rails_ray.families.version import Version
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.storage.filesystem import Storage


@dataclass(frozen=True)
class VersionQueries:
    """A stored version, and a data set with queries for it."""

    version: str
    config: RunConfig
    model: Model
    items: AnyItems
    cutoff_mass: float | None
    rows: NDArray[np.int64]
    data: DataSet

    @staticmethod
    def read(
        store: Storage,
        version: str | None,
        data: DataConfig | None,
        needed: Collection[str],
        allowed: AllowedCode = OURS_ALONE,
    ) -> "VersionQueries":
        """
        Args:
            data: by default the data in the version's config.
            needed: splits that must have a query.
            allowed: code that the version's config may name.
        """
        opened = Version.encoded(store, version, allowed)
        model, stored = with_kept_texts(opened.model, store), opened.items()
        read = read_data(with_data_of(opened.config, data), store, needed)
        rows = np.concatenate([stored.item_ids.rows(block) for block in read.item_ids.blocks()])
        mass = opened.described.cutoff_mass
        return VersionQueries(opened.name, opened.config, model, stored.state, mass, rows, read)

    def queries(self, split: str) -> Queries:
        """The queries of a split, with relevant items as rows of the version."""
        return self.data.queries[split].in_corpus(self.rows, len(self.items))


def with_data_of(run_config: RunConfig, data: DataConfig | None) -> RunConfig:
    """The config of a run, with the data that is named in place of its own."""
    return run_config if data is None else replace(run_config, data=data.over(run_config.data))
