"""One server for all tests of this folder. Tests that start a server of their own lie beside it."""

from collections.abc import Iterator

import pytest

from rails_ray import on_ray
from rails_ray.families.version import Version
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
from support.examples import publish_untrained
from support.one_serve import served
from support.served_version import Served


@pytest.fixture(scope="package")
def served_version(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Iterator[Served]:
    """A router, a query encoder and two shards on a real cluster."""
    root = tmp_path_factory.mktemp("served")
    published = publish_untrained(root, write_text_data(root / "my-data"))
    on_ray.calibrate(str(root), split="train")
    storage = Storage(str(root))
    items = Version(storage, published).items()
    with served(ServeArgs(storage=str(root), timeout_s=5, allow_anonymous=True)) as url:
        yield Served(url, root, published, Version(storage, published).model, items.item_ids, items.state)
