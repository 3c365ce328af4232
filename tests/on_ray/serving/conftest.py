"""Storage that more than one module serves."""

from pathlib import Path

import pytest

from support.published_rbe import publish_rbe
from support.ranked import write_scored_data


@pytest.fixture(scope="module")
def rbe_root(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:
    """A published version of RBE in two shards."""
    root = tmp_path_factory.mktemp("rbe")
    publish_rbe(root, write_scored_data(root / "data"))
    return root
