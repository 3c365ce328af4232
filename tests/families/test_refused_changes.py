"""Changes of items that are refused, and damage that a changed version is found to have."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rails_ray import local
from rails_ray.errors import ConflictError, DamagedError, NotFoundError, UnsupportedError
from rails_ray.families import changing
from rails_ray.serving.local import LocalVersion
from rails_ray.storage import live_ids, versions
from rails_ray.storage.filesystem import Storage
from support.changed import NUM_BASE, WIDTH, made, vectors_of


@pytest.fixture
def opened(tmp_path: Path) -> LocalVersion:
    return made(tmp_path)


@pytest.mark.parametrize(
    ("inputs", "ids", "message"),
    [
        (vectors_of([1, 2]), ["a", "a"], r"ids must be distinct, got 'a' twice or more"),
        (vectors_of([1]), ["i5"], r"items to add must be new to version v1, got 1 of 1 that it has, first 'i5'"),
        (vectors_of([1]), [5], r"item_id must be of type string, as those of version v1 are, got int64"),
        (np.ones((1, 3), np.float32), ["a"], r"vectors to add to version v1 must have 1 x 5 numbers an item, got 3"),
        (np.zeros((1, WIDTH), np.float32), ["a"], r"items to add must have .* other than 0|zeros"),
        (np.full((1, WIDTH), np.nan, np.float32), ["a"], r"vectors must be finite in float32"),
        (["a text"], ["a"], r"items to add to version v1 must be vectors, as its model reads them, got texts"),
        (np.zeros((0, WIDTH), np.float32), [], r"of one item at least"),
    ],
)
def test_items_that_are_refused(opened: LocalVersion, inputs: Any, ids: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened.add(inputs, ids)
    assert opened.manifest.version == "v1"
    assert len(opened.version.storage.list("versions")) == 1


def test_what_cannot_be_deleted(opened: LocalVersion) -> None:
    change = opened.delete(["nobody", "nobody", "i1x"])
    assert (change.num_deleted, change.num_unknown, change.manifest.version) == (0, 2, "v1")
    with pytest.raises(ValueError, match=r"an item of version v1 must be left, got all 30 to delete"):
        opened.delete([f"i{number}" for number in range(NUM_BASE)])


def test_a_version_that_nothing_keeps() -> None:
    opened = local.build(vectors_of([0, 1]))
    with pytest.raises(
        UnsupportedError, match=r"version v1 must be kept in a folder to be changed, .*: build it with a folder"
    ):
        opened.add(vectors_of([2]), [2])


def test_nothing_was_published(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="storage must hold a published version"):
        changing.delete(Storage(str(tmp_path)), ["a"])


def test_a_writer_whom_others_outrun(opened: LocalVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "publish_change", _outrun)
    with pytest.raises(ConflictError, match="no other version may become current"):
        opened.add(vectors_of([50]), ["new"])


def _outrun(*_: Any) -> None:
    raise ConflictError("no other version may become current while it is published, got v2")


def test_damage_is_found(opened: LocalVersion) -> None:
    """A file of hidden rows is cut short; then a manifest has lost an item."""
    storage = opened.version.storage
    opened.delete(["i3"])
    [part] = opened.manifest.parts
    assert part.hidden is not None
    whole = storage.read(part.hidden.path)
    storage.write(part.hidden.path, whole[:-1])
    with pytest.raises(DamagedError, match=r"must have the sha256 of its manifest"):
        local.open(str(storage))
    storage.write(part.hidden.path, whole)
    lost = dataclasses.replace(opened.manifest, parts=[dataclasses.replace(part, hidden=None)])
    found = live_ids.check_balance(storage, lost)
    assert found is not None
    assert "an item is lost, or there twice" in found


def test_a_parent_that_was_taken(tmp_path: Path) -> None:
    """Files that somebody deletes by hand take the base with them. A collection keeps it."""
    version = local.build(np.eye(8, dtype=np.float32)[:6], [f"i{row}" for row in range(6)], folder=str(tmp_path))
    made = version.add(np.eye(8, dtype=np.float32)[6:], ["a", "b"]).manifest
    shutil.rmtree(tmp_path / "versions" / "v1")
    with pytest.raises(NotFoundError, match=f"version must be one of {made.version}, got 'v1'"):
        versions.rollback(Storage(str(tmp_path)))
    for ask in (lambda: local.open(str(tmp_path)), lambda: version.add(np.ones((1, 8), np.float32), ["c"])):
        with pytest.raises(
            DamagedError, match=r"version v1 must hold config\.json, got no such file: encode and publish"
        ):
            ask()
