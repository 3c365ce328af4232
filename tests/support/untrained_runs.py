"""Runs of models with random weights, and versions of them: what encoding and searching do does not mind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rails_ray import on_ray
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.serving import local
from rails_ray.serving.local import LocalVersion
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data, write_vector_data
from support.examples import small_config, small_vector_config, write_untrained_run


def write_runs(root: Path) -> None:
    """The runs `mixture`, over texts, and `dot`, a dot product over vectors."""
    texts, vectors = write_text_data(root / "texts"), write_vector_data(root / "vectors", num_items=400)
    write_untrained_run(Storage(str(root)), "mixture", of(small_config(), texts))
    frozen = small_vector_config("dot product")
    frozen = frozen.with_family(encoder=replace(frozen.family.encoder, query_width=7, item_shape=(1, 7)))
    write_untrained_run(Storage(str(root)), "dot", of(frozen, vectors))


def of(config: RunConfig, folder: Path) -> RunConfig:
    """The config of a run on the data in a folder."""
    return replace(config, data=DataConfig(folder=str(folder)))


def published(root: Path, run: str, name: str, **stored: Any) -> LocalVersion:
    """A version of two shards, loaded into this process."""
    on_ray.encode(str(root), run, version=name, num_shards=2, part_items=64, stored=stored)
    on_ray.publish(str(root), name)
    return local.open(str(root), name)
