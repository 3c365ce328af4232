"""Stored versions of an earlier state have no default search, and take one: whatever their family, index or codes."""

import tarfile
from pathlib import Path

import pytest

from rails_ray import local
from rails_ray.cli.tuning_searches import tune_search
from rails_ray.families import default_searches
from rails_ray.families.config import DataConfig
from rails_ray.families.version import Version
from rails_ray.serving import measuring
from rails_ray.storage.filesystem import Storage

ARCHIVE = Path(__file__).parent / "format-5.tar.xz"
ALLOWED = ["support.ranked"]
FEW = ("dot-hnsw", "text-codes", "solar")
MANY = ("bm25", "cosine", "histories", "rbe", "text", "text-ivf", "text-surrogate", "trained-codes", "vectors")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        archive.extractall(folder)
    return folder / "format-5"


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(own, marks=pytest.mark.long) for own in MANY)])
def test_each_method_is_measured_and_the_choice_is_served(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "MOST_TIMED", 1)
    store = Storage(str(root))
    before = local.open(str(root), name, allow_code=ALLOWED)
    assert before.facts["search"] == {"method": "brute_force", "params": {}, "tuned": None}
    former = Version.published(store, name).config.data.folder
    data = DataConfig(folder=None if former is None else former.replace("/tmp/format-5", str(root)))  # where it is now
    found = tune_search(store, target_recall=0.5, k=4, version=name, data=data, allow_code=ALLOWED)
    assert found.left_out == []
    assert {own.method for own in found.measured} == set(before.shards[0].searcher.methods)
    assert all(own.recall == 1 for own in found.measured if own.method in ("brute_force", "two_pass"))
    assert found.chosen is not None
    assert default_searches.read_current(store, name) == found.chosen
    opened = local.open(str(root), name, allow_code=ALLOWED)
    assert opened.facts["search"]["method"] == found.chosen.method
