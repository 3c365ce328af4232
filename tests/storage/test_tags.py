"""Tags: names that stand for a version."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage import tags, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.intents import FOLDER
from support.examples import encode


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(str(tmp_path) if request.param == "local" else request.getfixturevalue("s3"))


def publish(storage: Storage, version: str) -> None:
    versions.publish(storage, encode(storage, version, [2]), f"2026-01-01T00:00:0{version[-1]}Z")


def test_a_tag_stands_for_a_version(storage: Storage) -> None:
    publish(storage, "v1")
    publish(storage, "v2")
    tags.tag(storage, "stable", "v1")
    assert versions.read_manifest(storage, "stable").version == "v1"
    assert versions.read_described(storage, "stable").version == "v1"
    assert tags.listed(storage) == {"stable": "v1"}
    tags.tag(storage, "stable", "v2")  # it moves
    tags.tag(storage, "second", "v2")
    assert tags.listed(storage) == {"second": "v2", "stable": "v2"}
    assert versions.rollback(storage, "stable").version == "v2"
    tags.untag(storage, "stable")
    assert tags.listed(storage) == {"second": "v2"}
    with pytest.raises(NotFoundError, match="version must be one of v1, v2, got 'stable'"):
        versions.read_manifest(storage, "stable")


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda storage: tags.tag(storage, "../x", "v1"), ValueError, r"a tag must be made of letters.*got '\.\./x'"),
        (lambda storage: tags.tag(storage, "v1", "v1"), ValueError, "another name than all versions, got 'v1'"),
        (lambda storage: tags.tag(storage, "a", "v9"), NotFoundError, "version must be one of v1, got 'v9'"),
        (lambda storage: tags.untag(storage, "a"), NotFoundError, "one of the tags of .*, which has none, got 'a'"),
    ],
)  # fmt: skip
def test_tags_that_are_refused(
    tmp_path: Path, call: Callable[[Storage], None], kind: type[Exception], message: str
) -> None:
    storage = Storage(str(tmp_path))
    publish(storage, "v1")
    with pytest.raises(kind, match=message):
        call(storage)
    assert tags.listed(storage) == {}
    assert storage.list(FOLDER) == []


def test_a_tag_that_cannot_be_read(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    publish(storage, "v1")
    storage.write("tags/a.json", b'{"version": 3}')
    with pytest.raises(DamagedError, match=r"tags/a\.json must name a version, got 3: tag the version again"):
        versions.read_manifest(storage, "a")


def test_a_version_goes_before_a_tag_of_its_name(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    publish(storage, "v1")
    tags.tag(storage, "v2", "v1")
    publish(storage, "v2")
    assert versions.read_manifest(storage, "v2").version == "v2"
