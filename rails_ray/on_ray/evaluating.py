"""Evaluate a run or a version on held-out queries, in one task on the cluster."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import ray
from numpy.typing import NDArray

from rails_ray import config
from rails_ray.build import family
from rails_ray.build.data import read_data
from rails_ray.build.version import version_calibration, version_config, version_items, version_model
from rails_ray.config import DataConfig, RunConfig
from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import SPLITS, Queries
from rails_ray.evaluation import report
from rails_ray.evaluation.report import Report
from rails_ray.models import Model
from rails_ray.on_ray.failures import told_plainly
from rails_ray.similarities.states import AnyItems
from rails_ray.storage import calibrations, runs, versions
from rails_ray.storage.filesystem import Storage


def evaluate(
    storage: str,
    *,
    run: str | None = None,
    version: str | None = None,
    split: str = "test",
    data: DataConfig | None = None,
) -> Report:
    """Evaluate a run's model, or a stored version, published or not; by default the current version.

    A relevant item that a version lacks counts as not found.

    Args:
        data: data to evaluate on; by default the data in the config of the run or version.

    Raises:
        NotFoundError: if there is no such run or version.
        DamagedError: if the version's files differ from its manifest.
        ValueError: if both a run and a version are given, if the split is not "train", "valid" or "test", or if
            the model cannot read the data's queries.
    """
    if run is not None and version is not None:
        raise ValueError(f"give a run or a version to evaluate, got run {run!r} and version {version!r}")
    check_split(split)
    store = Storage(storage)
    with told_plainly():
        result: Report = ray.get(_evaluate.remote(str(store), run, version, split, data))
    return result


def check_split(split: str) -> None:
    """Raises:
    ValueError: if there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")


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
    def read(store: Storage, version: str | None, data: DataConfig | None, needed: Collection[str]) -> "VersionQueries":
        """
        Args:
            data: by default the data in the version's config.
            needed: splits that must have a query.
        """
        described = versions.read_described(store, version)
        model = version_model(store, described)
        stored = version_items(store, described)
        run_config = version_config(store, described)
        asked = read_data(_with(run_config, data), store, needed)
        rows = np.concatenate([stored.item_ids.rows(block) for block in asked.item_ids.blocks()])
        return VersionQueries(described.version, run_config, model, stored.state, described.cutoff_mass, rows, asked)

    def queries(self, split: str) -> Queries:
        """The queries of a split, with relevant items as rows of the version."""
        return self.data.queries[split].in_corpus(self.rows, len(self.items))


def _with(run_config: RunConfig, data: DataConfig | None) -> RunConfig:
    return run_config if data is None else replace(run_config, data=data.over(run_config.data))


@ray.remote(num_cpus=1)
def _evaluate(storage: str, run: str | None, version: str | None, split: str, data_config: DataConfig | None) -> Report:
    store = Storage(storage)
    if run is not None:
        found = runs.read(store, run)
        run_config, cutoff_mass = config.from_json(found.config), found.cutoff_mass
        run_config = _with(run_config, data_config)
        data = read_data(run_config, store, [split])
        family(run_config).check_can_be_asked(data)
        model = family(run_config).trained_model(runs.weights(store, found))
        items = family(run_config).run_items(store, run, model, data)
        distribution = family(run_config).offers.distribution()
        return report.evaluate(model, items, data.queries[split], split, cutoff_mass, distribution)
    own = VersionQueries.read(store, version, data_config, [split])
    stored = calibrations.read_current(store, own.version)
    return report.evaluate(
        own.model,
        own.items,
        own.queries(split),
        split,
        own.cutoff_mass,
        family(own.config).offers.distribution(),
        None if stored is None else version_calibration(family(own.config).offers, stored),
    )
