"""One shard in several versions: loaded when they are wanted, shared where they can be, gone a while after."""

from pathlib import Path

import numpy as np
import pytest

from rails_ray import local
from rails_ray.errors import DamagedError
from rails_ray.serving import held_versions, room
from rails_ray.serving.held_versions import LEASE_S, RETRY_S, HeldVersion, HeldVersions
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.examples import publish_here
from support.processes import wait_for

VECTORS = np.eye(5, dtype=np.float32)


class Clocked:
    """The versions of the only shard, by a clock that the test moves."""

    def __init__(self, folder: Path, first: str | None = None) -> None:
        self.now, self.storage = 0.0, Storage(str(folder))
        self.held = HeldVersions(self.storage, 0, first, clock=lambda: self.now)

    def loaded(self, name: str) -> HeldVersion:
        """A version once it is loaded."""
        wait_for(lambda: self.held.want(name) is not None)
        found = self.held.want(name)
        assert isinstance(found, HeldVersion), found
        return found

    def refusal(self, name: str) -> str:
        wait_for(lambda: self.held.want(name) is not None)
        found = self.held.want(name)
        assert isinstance(found, str)
        return found


@pytest.fixture
def clocked(tmp_path: Path) -> Clocked:
    """Of v1; v2 is there too, and v1.1 with a delta is current."""
    local.build(VECTORS, folder=str(tmp_path), version="v2")
    local.build(VECTORS, folder=str(tmp_path)).add(VECTORS[:1] + 1, [9])
    return Clocked(tmp_path, "v1")


def test_it_begins_with_what_is_named_or_current(clocked: Clocked) -> None:
    assert clocked.held.newest.version.name == "v1"
    current = HeldVersions(clocked.storage, 0, None).newest
    assert current.version.name == versions.current_version(clocked.storage)
    assert len(current.search) == 6


def test_what_is_wanted_is_loaded_beside_and_shares_the_base(clocked: Clocked) -> None:
    first = clocked.held.newest
    name = versions.current_version(clocked.storage)
    other = clocked.loaded(name)
    assert clocked.held.newest is other
    assert clocked.held.of(first.identity) is first.search
    assert clocked.held.of(other.identity) is other.search
    assert clocked.held.of("another") is None
    assert other.search.held.segments[0].searcher is first.search.held.segments[0].searcher


def test_a_version_goes_a_while_after_it_was_last_wanted(clocked: Clocked) -> None:
    first, other = clocked.held.newest, clocked.loaded("v2")
    clocked.now += LEASE_S
    clocked.held.want("v2")
    assert clocked.held.of(first.identity) is not None
    clocked.now += 1
    clocked.held.want("v2")
    assert clocked.held.of(first.identity) is None
    clocked.now += 10 * LEASE_S
    clocked.held.want("nowhere")
    assert clocked.held.of(other.identity) is not None, "the newest stays, whoever wants it"
    assert clocked.loaded("v1").version.name == "v1", "as a router that begins again may want it"


def test_a_version_that_cannot_be_loaded_is_refused_and_tried_again_later(clocked: Clocked) -> None:
    described = local.open(str(clocked.storage), "v2").manifest
    path = Path(str(clocked.storage)) / described.parts[0].path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert "must have the sha256 of its manifest" in clocked.refusal("v2")
    path.write_bytes(whole)
    assert "must have the sha256 of its manifest" in clocked.refusal("v2")
    clocked.now += RETRY_S
    assert clocked.loaded("v2").version.name == "v2"
    assert "version must be one of v1, " in clocked.refusal("nowhere")


def test_another_number_of_shards_and_too_little_memory(clocked: Clocked, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_here(Path(str(clocked.storage)) / "elsewhere", 2)
    two = Storage(f"{clocked.storage}/elsewhere")
    held = HeldVersions(two, 0, "v1")
    local.build(VECTORS, folder=str(two), version="one-shard")
    wait_for(lambda: held.want("one-shard") is not None)
    assert held.want("one-shard") == "version one-shard must have 2 shards, got 1: deploy it anew"
    monkeypatch.setattr(room, "free_bytes", lambda: 10.0)
    assert "MB free to load version v2, got 0 MB" in clocked.refusal("v2")


def test_a_fault_of_ours_is_told_and_stops_nothing(clocked: Clocked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_versions, "missing_bytes", lambda *_: [][0])
    assert clocked.refusal("v2") == "IndexError: list index out of range"
    assert clocked.held.newest.version.name == "v1"


def test_a_damaged_version_begins_nothing(tmp_path: Path) -> None:
    made = local.build(VECTORS, folder=str(tmp_path)).manifest
    (tmp_path / made.parts[0].path).write_bytes(b"")
    with pytest.raises(DamagedError, match="must have the sha256 of its manifest"):
        HeldVersions(Storage(str(tmp_path)), 0, "v1")
