"""A version of RBE and one of dot products, which the tests of this folder share."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support.data_folders import write_text_data
from support.examples import publish_untrained
from support.published_rbe import publish_rbe
from support.ranked import write_scored_data


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:
    folder = tmp_path_factory.mktemp("budget")
    publish_rbe(folder, write_scored_data(folder / "data"))
    return folder


@pytest.fixture(scope="session")
def texts(root: Path) -> dict[str, str]:
    items = pq.read_table(root / "data" / "relevance" / "small" / "items.parquet")
    return dict(zip(items["item_id"].to_pylist(), items["text"].to_pylist(), strict=True))


@pytest.fixture(scope="session")
def dot_products(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:
    folder = tmp_path_factory.mktemp("dot-products")
    data = write_text_data(folder / "data", num_items=120)
    publish_untrained(folder, data, similarity="dot product", keep_texts=True)
    return folder
