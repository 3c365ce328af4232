"""A small version of RBE, trained in this process and encoded on the session's cluster."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rails_ray import on_ray
from rails_ray.families.config import DataConfig, RunConfig, allowed_here, to_json
from rails_ray.families.data import for_data, read_data
from rails_ray.families.training_family import training_family
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training.piece import Given, fit
from support.ranked import small_rbe_config


def write_rbe_run(root: Path, data: Path, name: str = "rbe", config: RunConfig | None = None) -> None:
    """A trained run."""
    store = Storage(str(root))
    config = replace(config or small_rbe_config(), data=DataConfig(folder=str(data)))
    read = read_data(config, store)
    config = for_data(config, read, allowed_here(config))
    runs.begin(store, name, to_json(config), read.digest())
    [piece] = training_family(config, allowed_here(config)).pieces()
    fitted = fit(piece, Given(read=read, storage=store, run=name))
    assert fitted is not None
    runs.write(
        store,
        name,
        weights=fitted.weights,
        validation=b'{"cutoff_mass": null}',
        training=fitted.training,
        config=to_json(config),
    )


def publish_rbe(root: Path, data: Path, version: str = "v1", num_shards: int = 2, **asked: Any) -> None:
    """The same, encoded and published."""
    write_rbe_run(root, data, f"of-{version}")
    on_ray.encode(str(root), f"of-{version}", version=version, num_shards=num_shards, **asked)
    on_ray.publish(str(root), version)
