"""A real disk that is full: a sentence, nothing half-visible, and the same call goes on when there is room again."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rails_ray import on_ray
from rails_ray.errors import StorageError, TrainingError
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
from support.examples import small_config, write_untrained_run

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:  # it takes a privilege; tests/storage/test_filesystem.py injects the error everywhere
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk: Path, left_bytes: int) -> Path:
    """A file that takes all room but so much."""
    filler = disk / "filler"
    free = subprocess.run(["df", "--output=avail", "-B1", disk], capture_output=True, text=True, check=True)
    filler.write_bytes(b"0" * (int(free.stdout.split()[1]) - left_bytes))
    return filler


@pytest.fixture
def run_config(tmp_path: Path) -> RunConfig:
    made = replace(small_config(), data=DataConfig(folder=str(write_text_data(tmp_path / "data"))))
    return replace(made, training=replace(made.training, num_steps=20))


def test_training_on_a_full_disk(disk: Path, run_config: RunConfig) -> None:
    filler = fill(disk, 16_000)
    with pytest.raises(TrainingError, match=r"must end with a model, got: storage must take .*No space left on device"):
        on_ray.train(run_config, str(disk), run="r", num_workers=1, checkpoint_s=0)
    assert "config.json" not in Storage(str(disk)).list("runs/r")
    filler.unlink()
    assert len(on_ray.train(run_config, str(disk), run="r", num_workers=1).training["losses"]) == 20


def test_encoding_and_publishing_on_a_full_disk(disk: Path, run_config: RunConfig) -> None:
    write_untrained_run(Storage(str(disk)), "r", run_config)
    filler = fill(disk, 24_000)
    with pytest.raises(
        StorageError, match=r"storage must take the file .*got: No space left on device: free some space"
    ):
        on_ray.encode(str(disk), "r", version="v", part_items=10)
    assert [row.state for row in versions.listed(Storage(str(disk)))] == ["encoding"]
    filler.unlink()
    on_ray.encode(str(disk), "r", version="v", part_items=10)
    filler = fill(disk, 0)
    with pytest.raises(StorageError, match="No space left on device"):
        on_ray.publish(str(disk), "v")
    assert [row.state for row in versions.listed(Storage(str(disk)))] == ["encoded"]
    filler.unlink()
    assert on_ray.publish(str(disk), "v").num_items == 60


def test_indexing_on_a_full_disk(disk: Path, run_config: RunConfig) -> None:
    """The parts have room, a graph whose links take 2 KB an item has not; then only the graph is made."""
    write_untrained_run(Storage(str(disk)), "r", run_config)
    filler = fill(disk, 100_000)
    encoding = {"version": "v", "num_shards": 1, "part_items": 10, "stored": {"index": HnswConfig(M=256)}}
    with pytest.raises(StorageError, match=r"storage must take the file .*/objects/.*: No space left on device"):
        on_ray.encode(str(disk), "r", **encoding)
    parts = sorted((disk / "versions" / "v" / "parts").glob("*.json"))
    times = [path.stat().st_mtime_ns for path in parts]
    assert len(parts) == 6
    assert [row.state for row in versions.listed(Storage(str(disk)))] == ["encoding"]
    filler.unlink()
    on_ray.encode(str(disk), "r", **encoding)
    assert [path.stat().st_mtime_ns for path in parts] == times
    assert on_ray.publish(str(disk), "v").num_items == 60
