"""encode, calibrate and publish, killed before or after any operation on the storage."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rails_ray import local
from rails_ray.families import calibrations
from rails_ray.families.config import DataConfig
from rails_ray.families.encoding import EncodeOptions
from rails_ray.families.encoding import encode as encode_by
from rails_ray.families.in_process import InProcess
from rails_ray.families.version import Version
from rails_ray.storage import manifest, versions
from rails_ray.storage.filesystem import Storage
from support.calibrations import POSITIVES, STORED
from support.data_folders import write_text_data
from support.examples import small_config, write_untrained_run
from support.failing import BEFORE_AND_AFTER, dying

Stage = Callable[[str], object]


def encode(root: str) -> None:
    encode_by(InProcess(), root, "run", EncodeOptions(version="v1", num_shards=2))


def calibrate(root: str) -> None:
    """Store what `rails-ray calibrate` stores. Measuring only reads, so it is left out."""
    calibrations.write(Storage(root), "v1", STORED)
    versions.announce(Storage(root), "v1")


def publish(root: str) -> None:
    storage = Storage(root)
    versions.publish(storage, manifest.read_encoded(storage, "v1"), "2026-01-01T00:00:00Z")


STAGES: list[Stage] = [encode, calibrate, publish]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The storage before each stage: `v0` is current, of the same run. And the one after the last, under `done`."""
    folder = tmp_path_factory.mktemp("stages")
    root = folder / "storage"
    config = replace(small_config(), data=DataConfig(folder=str(write_text_data(folder / "data", num_items=24))))
    storage = Storage(str(root))
    write_untrained_run(storage, "run", config, cutoff_mass=0.9)
    first = encode_by(InProcess(), str(root), "run", EncodeOptions(version="v0", num_shards=1))
    versions.publish(storage, first, "2025-01-01T00:00:00Z")
    found = dict[str, Path]()
    for stage in STAGES:
        found[stage.__name__] = Path(shutil.copytree(root, folder / stage.__name__))
        stage(str(root))
    return found | {"done": root}


@pytest.mark.parametrize("is_done", BEFORE_AND_AFTER)
@pytest.mark.parametrize("stage", [pytest.param(encode, marks=pytest.mark.long), calibrate, publish])
def test_each_point_of_a_crash(
    before: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Stage, is_done: bool
) -> None:
    """Until the last step of publishing the former version answers, then the new one. The same commands again end in
    the same version, with its calibration, as if nothing had happened."""
    expected = Version.published(Storage(str(before["done"])))
    number, is_over = 0, False
    while not is_over:
        number += 1
        root = Path(shutil.copytree(before[stage.__name__], tmp_path / str(number)))
        with monkeypatch.context() as patched:
            count = dying(patched, root, number, is_done)
            try:
                stage(str(root))
                is_over = count[0] < number
            except OSError:
                is_over = False
        storage = Storage(str(root))
        current = versions.current_version(storage)
        assert current in (("v0", "v1") if stage is publish else ("v0",))
        assert local.open(str(root)).search(["red"], k=3).version == current
        for again in STAGES[STAGES.index(stage) :]:
            again(str(root))
        found = Version.published(storage)
        assert found.manifest.contents_sha256 == expected.manifest.contents_sha256
        assert not [own for own in versions.damages(storage, found.described) if own]
        stored = calibrations.read_current(storage, "v1")
        assert stored is not None
        assert replace(stored, positives=POSITIVES) == STORED
        shutil.rmtree(root)
    assert number > (3 if stage is calibrate else 15)
