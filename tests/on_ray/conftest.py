"""What several modules train on."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from rails_ray.families.config import DataConfig, RunConfig
from support.data_folders import write_text_data
from support.examples import small_config


@pytest.fixture(scope="module")
def run_config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run that trains in a moment, on a small text data set."""
    folder = write_text_data(tmp_path_factory.mktemp("data"))
    return replace(small_config(), data=DataConfig(folder=str(folder)))


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """The data set with half as many items again, all in another order, and queries for all of them."""
    folder = write_text_data(tmp_path_factory.mktemp("grown"), num_items=90, seed=1)
    items = pq.read_table(folder / "items.parquet")
    pq.write_table(items.take(list(reversed(range(items.num_rows)))), folder / "items.parquet")
    return DataConfig(folder=str(folder))
