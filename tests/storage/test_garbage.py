"""What a collection takes, and what it leaves."""

import time
from pathlib import Path

import pytest

from rails_ray import local
from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.families.compacting import compact
from rails_ray.storage import tags, versions
from rails_ray.storage.collecting import collect
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.garbage import RetentionPolicy, find
from rails_ray.storage.leases import Lease
from support.clocks import Clock
from support.collected import NONE_MORE, add, assert_whole, build, cut_off, delete_all, files, files_of, known


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(str(tmp_path) if request.param == "local" else request.getfixturevalue("s3"))


@pytest.fixture
def folder(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def test_what_nothing_needs_goes(storage: Storage) -> None:
    build(storage, "v1")
    build(storage, "v2", 100)
    former = add(storage, 1, 500)
    current = add(storage, 2)
    storage.write("objects/" + 64 * "0", b"of nobody")
    storage.write("data/d/items.parquet", b"")
    storage.write("runs/r/config.json", b"")
    only_v1 = files_of(storage, "v1") - files_of(storage, "v2") - files_of(storage, current)
    before = files(storage)
    dry = find(storage, NONE_MORE, time.time())
    assert files(storage) == before
    done = collect(storage, NONE_MORE)
    assert done.garbage == dry
    assert done.is_complete
    assert (done.num_files, done.size_bytes) == (len(dry.files), dry.size_bytes)
    assert before - files(storage) == {*dry.files} == only_v1 | {"objects/" + 64 * "0"}
    assert {own.version: list(own.reasons) for own in dry.versions} == {
        "v1": [],
        "v2": [f"files of {former}", f"files of {current}"],
        former: ["current before"],
        current: ["current"],
    }
    assert dry.total_bytes == sum({**storage.sizes("versions"), **storage.sizes("objects")}.values()) + dry.size_bytes
    for version in ("v2", former, current):
        assert_whole(storage, version)
    assert storage.exists("data/d/items.parquet")
    assert storage.exists("runs/r/config.json")
    assert collect(storage, NONE_MORE).num_files == 0
    with pytest.raises(NotFoundError, match=r"version must be one of .*v2.*, got 'v1'"):
        local.open(str(storage), "v1")
    with pytest.raises(NotFoundError, match="version must be one of"):
        versions.rollback(storage, "v1")


def test_the_newest_stay(folder: Storage) -> None:
    for number in range(1, 6):
        build(folder, f"v{number}", 100 * number)
    found = find(folder, RetentionPolicy(keep=2), time.time())
    assert {own.version: list(own.reasons) for own in found.versions} == {
        "v1": [], "v2": [], "v3": ["among the newest 2"], "v4": ["current before"], "v5": ["current"],
    }  # fmt: skip
    assert not find(folder, RetentionPolicy(), time.time()).files
    with pytest.raises(ValueError, match="keep must be at least 0, got -1"):
        RetentionPolicy(keep=-1)


def test_tags_and_servers_keep_a_version(folder: Storage) -> None:
    for number in range(1, 6):
        build(folder, f"v{number}", 100 * number)
    clock = Clock()
    clock.now = time.time()
    tags.tag(folder, "stable", "v1")
    tags.tag(folder, "of-nobody", "v1")
    folder.write("tags/of-nobody.json", b'{"version": "v0"}')
    lease = Lease(folder, lambda: "v2", clock)
    lease.look()
    delete_all(folder, clock=clock)
    assert [*known(folder)] == ["v1", "v2", "v4", "v5"]
    clock.now += 1000  # the server has died
    tags.untag(folder, "stable")
    delete_all(folder, clock=clock)
    assert [*known(folder)] == ["v4", "v5"]
    assert folder.walk("readers") == []


def test_a_version_by_its_name(folder: Storage) -> None:
    for number in range(1, 5):
        build(folder, f"v{number}", 100 * number)
    delete_all(folder, RetentionPolicy(versions=["v2"]))
    assert [*known(folder)] == ["v1", "v3", "v4"]
    tags.tag(folder, "stable", "v1")
    lease = Lease(folder, lambda: "v4")
    lease.look()
    needed = "a version to delete must be one that nothing needs, got"
    for version, message in {
        "v1": f"{needed} v1: tag stable",
        "v3": f"{needed} v3: current before",
        "v4": f"{needed} v4: current, 1 server",
    }.items():
        with pytest.raises(ValueError, match=message):
            delete_all(folder, RetentionPolicy(versions=[version]))
    with pytest.raises(NotFoundError, match="version must be one of v1, v3, v4, got 'v2'"):
        delete_all(folder, RetentionPolicy(versions=["v2"]))
    made = add(folder, 999)
    add(folder, 998)
    add(folder, 997)
    with pytest.raises(ValueError, match=rf"{needed} v4: 1 server, files of {made}"):
        delete_all(folder, RetentionPolicy(versions=["v4"]))


def test_encodings_that_were_cut_off_go_if_that_is_asked_for(folder: Storage) -> None:
    build(folder, "v1")
    cut_off(folder, "v2", 300)
    build(folder, "v3", 100)
    build(folder, "v4", 200)
    folder.delete("versions/v4/manifest.json")  # not published
    versions.rollback(folder, "v1")
    versions.rollback(folder, "v3")
    before = files(folder)
    assert known(folder) == {"v1": "published", "v2": "encoding", "v3": "current", "v4": "encoded"}
    found = find(folder, RetentionPolicy(), time.time())
    assert not found.files
    assert [own.reasons for own in found.versions][1::2] == [["not finished"], ["not published"]]
    delete_all(folder, RetentionPolicy(unfinished=True))
    assert known(folder) == {"v1": "published", "v3": "current", "v4": "encoded"}
    assert before - files(folder) >= {path for path in before if "/v2/" in path}
    delete_all(folder, RetentionPolicy(versions=["v4"]))
    assert [*known(folder)] == ["v1", "v3"]
    assert {path for path in files(folder) if path.startswith("objects/")} == {
        path for version in ("v1", "v3") for path in files_of(folder, version) if path.startswith("objects/")
    }


def test_an_encoding_that_was_cut_off_goes_on_after_a_collection(folder: Storage) -> None:
    """Its parts are named by their records alone."""
    build(folder, "v1", 100)
    cut_off(folder, "v2", 300)
    written = folder.walk("versions/v2/parts")
    delete_all(folder)
    assert folder.walk("versions/v2/parts") == written
    build(folder, "v2", 300)
    assert_whole(folder, "v2")


def test_what_a_compaction_builds_from_stays(folder: Storage) -> None:
    """No manifest names the index that was fitted, and a compaction does not need the versions before it."""
    build(folder, "v1", index="ivf")
    add(folder, 500)
    build(folder, "v2", 100, index="ivf")
    versions.rollback(folder)
    delete_all(folder)
    compact(folder)
    add(folder, 501)
    made = compact(folder)
    assert made.home == made.version
    assert made.version.startswith("v1.4-")
    done = delete_all(folder)
    assert done.num_files
    assert [own for own, state in known(folder).items() if state == "current"] == [made.version]
    assert "v1" not in known(folder)
    assert_whole(folder, made.version)
    add(folder, 502)
    compact(folder)


def test_a_folder_without_a_record_goes(folder: Storage) -> None:
    """A crash between the files of a version and its manifest leaves one, and so does a collection that was cut off."""
    build(folder, "v1")
    folder.write("versions/v1.1-abcdef/calibration.json", b"{}")
    assert [*known(folder)] == ["v1"]
    found = find(folder, RetentionPolicy(), time.time())
    assert found.files == {"versions/v1.1-abcdef/calibration.json": 2}
    assert [(own.version, own.state, own.size_bytes) for own in found.versions][1] == ("v1.1-abcdef", "left over", 2)
    collect(folder, RetentionPolicy())
    assert not folder.walk("versions/v1.1-abcdef")


@pytest.mark.parametrize("path", ["versions/v1/manifest.json", "versions/v1/indexes/fitted-average.json"])
def test_nobody_knows_what_a_damaged_record_needs(folder: Storage, path: str) -> None:
    build(folder, "v1", index="ivf")
    build(folder, "v2", 100)
    build(folder, "v3", 200)
    folder.write(path, b"{}")
    before = files(folder)
    with pytest.raises(
        DamagedError, match=r"v1.* (damaged: restore it, or delete it with --version v1|name a file, got none)"
    ):
        delete_all(folder, RetentionPolicy())
    assert files(folder) == before
    delete_all(folder, RetentionPolicy(versions=["v1"]))
    assert [*known(folder)] == ["v2", "v3"]


def test_a_current_version_that_is_damaged_or_missing(folder: Storage) -> None:
    with pytest.raises(NotFoundError, match="storage must hold a published version, got none"):
        delete_all(folder)
    build(folder, "v1")
    folder.delete("versions/v1/manifest.json")
    with pytest.raises(NotFoundError, match="version must be one of"):
        delete_all(folder)
    assert folder.walk("objects")


def test_more_than_half_needs_a_yes(folder: Storage) -> None:
    for number in range(1, 6):
        build(folder, f"v{number}", 100 * number)
    before = files(folder)
    with pytest.raises(
        ValueError, match=r"at most half of all bytes may be deleted unless --yes is given, got [\d,]+ of"
    ):
        collect(folder, NONE_MORE)
    assert files(folder) == before
    delete_all(folder)
    assert [*known(folder)] == ["v4", "v5"]


def test_sizes_of_what_goes_add_up(folder: Storage) -> None:
    build(folder, "v1")
    build(folder, "v2", 100)
    build(folder, "v3", 200)
    found = find(folder, NONE_MORE, time.time())
    [going] = [own for own in found.versions if not own.reasons]
    assert going.version == "v1"
    assert going.size_bytes == found.size_bytes == sum(found.files.values())
