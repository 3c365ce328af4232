"""Evaluate a run or a version on held-out queries, in one task on the cluster."""

import ray

from rails_ray import build, config
from rails_ray.data.dataset import SPLITS
from rails_ray.evaluation import report
from rails_ray.evaluation.ranking import encode_items
from rails_ray.evaluation.report import Report
from rails_ray.on_ray.failures import told_plainly
from rails_ray.storage import runs, shards, versions
from rails_ray.storage.filesystem import Storage


def evaluate(storage: str, *, run: str | None = None, version: str | None = None, split: str = "test") -> Report:
    """The report of a run's model, or of a version as it is stored; by default the current version.

    Raises:
        NotFoundError: if there is no such run or version.
        DamagedError: if the version's files are not those of its manifest.
        ValueError: if the data set has other items now, if both a run and a version are given, or if the split is none
            of "train", "valid", "test".
    """
    if run is not None and version is not None:
        raise ValueError(f"give a run or a version to evaluate, got run {run!r} and version {version!r}")
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    store = Storage(storage)
    with told_plainly():
        result: Report = ray.get(_evaluate.remote(str(store), run, version, split))
    return result


@ray.remote(num_cpus=1)
def _evaluate(storage: str, run: str | None, version: str | None, split: str) -> Report:
    store = Storage(storage)
    if run is not None:
        found = runs.read(store, run)
        run_config, cutoff_mass = config.from_json(found.config), found.cutoff_mass
        data = build.data(run_config, store)
        model = build.trained_model(run_config, found.weights)
        items = encode_items(model, model.item_features(data.item_inputs))
    else:
        described = versions.read_manifest(store, version)
        model = build.version_model(store, described)
        stored = shards.read_shards(store, described, range(len(described.shard_items)))
        items = stored.state
        cutoff_mass = described.cutoff_mass
        run_config = build.version_config(store, described)
        data = build.data(run_config, store)
        if stored.item_ids != data.item_ids:
            raise ValueError(
                f"the data set must hold the {len(stored.item_ids)} items of version {described.version}, in their "
                f"order, got {len(data.item_ids)} that are others: encode and publish a new version"
            )
    build.for_data(run_config, data)  # says if a row of the model is another item now
    return report.evaluate(model, items, data.queries[split], split, cutoff_mass)
