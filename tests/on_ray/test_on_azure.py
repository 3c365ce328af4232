"""A model from its data to an answer on Azure's storage."""

from dataclasses import replace
from pathlib import Path

import pytest

from rails_ray import on_ray
from rails_ray.families.config import DataConfig
from rails_ray.serving import local
from rails_ray.storage.filesystem import Storage
from support.azure_server import needs_azurite
from support.data_folders import write_text_data
from support.examples import small_config

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.usefixtures("ray_cluster"), needs_azurite]


def test_from_data_to_an_answer(azure: str, tmp_path: Path) -> None:
    """A run on Azure answers like a run in a folder."""
    data, store = write_text_data(tmp_path / "data"), Storage(azure)
    for file in data.rglob("*.parquet"):
        store.write(f"data/{file.relative_to(data)}", file.read_bytes())
    answers = []
    for root, folder in ((azure, f"{azure}/data"), (str(tmp_path / "s"), str(data))):
        on_ray.train(replace(small_config(), data=DataConfig(folder=folder)), root, run="r", num_workers=2)
        on_ray.encode(root, "r", version="v", num_shards=2)
        on_ray.publish(root, "v")
        answers.append((on_ray.evaluate(root), local.open(root).search(["red car"], k=9).results[0].items))
    assert answers[0] == answers[1]
