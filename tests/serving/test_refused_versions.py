"""Versions that cannot take over: each is refused in one sentence, and the one that answers goes on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rails_ray import local
from rails_ray.errors import StorageError
from rails_ray.schema.ranker import RankerConfig
from rails_ray.serving import room
from rails_ray.serving.following import RETRY_S
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.examples import publish_here
from support.followed import (
    Watched,
    build,
    two_versions,
    vectors_of,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_versions(tmp_path)


@pytest.fixture
def watched(folder: Path) -> Watched:
    return Watched(folder)


def refuse(watched: Watched, message: str, name: str = "v2") -> None:
    """A look that refuses the version with this sentence, in /v1/health as in the log, and once."""
    assert not watched.follower.look()
    refused = watched.follower.refused
    assert refused is not None
    assert message in refused
    assert refused.startswith(f"version {name} is refused, and v1 goes on: ")
    health = watched.health()
    assert (health["status"], health["version"], health["warning"]) == ("ok", "v1", refused)


def take_over(watched: Watched, name: str = "v2") -> None:
    """A look that switches, after which nothing is wrong."""
    assert watched.follower.look()
    assert watched.follower.refused is None
    assert watched.name == name
    assert "warning" not in watched.health()


def test_too_little_memory(watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    versions.rollback(watched.storage, "v2")
    with monkeypatch.context() as small:
        small.setattr(room, "free_bytes", lambda: 1000.0)
        refuse(watched, "MB free to load version v2, got 0 MB: free some, or start the server anew")
    watched.now += RETRY_S - 1
    refuse(watched, "MB free")  # it is not tried before its time
    watched.now += 1
    take_over(watched)
    messages = [own for own in caplog.messages if "refused" in own]
    assert len(messages) == 1


def test_workers_need_room_for_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(folder, num_processes=4)
    versions.rollback(watched.storage, "v2")
    version = local.open(str(folder)).version
    size = watched.server.loaded.bytes_to_load(version)
    monkeypatch.setattr(room, "free_bytes", lambda: 3.5 * room.PEAK * size)
    refuse(watched, "memory must have")
    monkeypatch.setattr(room, "free_bytes", lambda: 4.5 * room.PEAK * size)
    watched.now += RETRY_S
    take_over(watched)


def test_a_container_has_less_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CGROUP", tmp_path)
    whole = room.free_bytes()
    for name, text in {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 5\n"}.items():
        (tmp_path / name).write_text(text)
    assert room.free_bytes() == 300
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 200\n")
    assert room.free_bytes() == 500, "what is cached of files can be dropped"
    (tmp_path / "memory.max").write_text("max\n")
    assert room.free_bytes() > 1000
    assert whole > 1000


def damage_delta(watched: Watched) -> tuple[str, Path, bytes]:
    """Publish a delta, and damage its part. Returns the version, the file, and its bytes."""
    writer = local.open(str(watched.storage))
    change = writer.add(vectors_of(9, 2), [100, 101])
    [part] = [part for part in change.manifest.parts if part.delta is not None]
    path = Path(str(watched.storage)) / part.path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    return change.manifest.version, path, whole


def test_a_damaged_delta(watched: Watched) -> None:
    name, path, whole = damage_delta(watched)
    refuse(watched, "must have the sha256 of its manifest", name)
    path.write_bytes(whole)
    assert not watched.follower.look()
    watched.now += RETRY_S
    take_over(watched, name)


def test_another_change_is_tried_at_once(watched: Watched) -> None:
    name, _, _ = damage_delta(watched)
    refuse(watched, "must have the sha256 of its manifest", name)
    versions.rollback(watched.storage, "v2")
    take_over(watched)


def test_a_rollback_to_what_answers_ends_a_refusal(watched: Watched) -> None:
    name, _, _ = damage_delta(watched)
    refuse(watched, "must have the sha256 of its manifest", name)
    versions.rollback(watched.storage, "v1")
    assert not watched.follower.look()
    assert "warning" not in watched.health()


def test_a_format_newer_than_known(watched: Watched) -> None:
    path = Path(str(watched.storage)) / "versions" / "v2" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 7}))
    pointer = Path(str(watched.storage)) / versions.CURRENT
    pointer.write_text(json.dumps({"version": "v2", "nonce": "another"}))
    refuse(watched, "must be of format 5 or 6, got 7: update rails-ray, as a newer one wrote it")


def test_another_form_of_query(tmp_path: Path) -> None:
    publish_here(tmp_path)
    watched = Watched(tmp_path)
    build(tmp_path, "v2", 2)
    refuse(
        watched, "version v2 must take the queries that v1 takes, text (string), got embedding (list<float>): start a"
    )


def test_another_heavy_ranker_and_code_that_is_not_allowed(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    family = type(watched.server.served.family)
    versions.rollback(watched.storage, "v2")

    def refuses(own: Any, has_ranker: bool) -> None:
        raise ValueError("version v2 names the ranker 'mine:Best', code that this process is not allowed to run")

    with monkeypatch.context() as other:
        other.setattr(family, "check_code", refuses)
        refuse(watched, "code that this process is not allowed to run")
    watched.now += RETRY_S
    with monkeypatch.context() as other:
        served, best = watched.server.served.family, RankerConfig(path="mine:Best")
        other.setattr(family, "ranker", property(lambda own: RankerConfig() if own is served else best))
        refuse(watched, "version v2 must have the heavy ranker of v1, none, got mine:Best or another folder: start a")
    watched.now += RETRY_S
    take_over(watched)


def test_scores_that_are_no_numbers(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    search = ShardSearch.search

    def broken(*given: Any) -> Any:
        found = search(*given)
        return replace(found, found=replace(found.found, scores=torch.full_like(found.found.scores, torch.nan)))

    versions.rollback(watched.storage, "v2")
    with monkeypatch.context() as wrong:
        wrong.setattr(ShardSearch, "search", broken)
        refuse(watched, "version v2 must answer an example query with finite scores, got others from shard 0")
    watched.now += RETRY_S
    take_over(watched)


def test_a_fault_of_ours_is_logged_and_stops_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    versions.rollback(watched.storage, "v2")
    with monkeypatch.context() as wrong:
        wrong.setattr(ShardSearch, "__init__", lambda *_: [][0])
        refuse(watched, "list index out of range")
    assert any(record.exc_info for record in caplog.records)
    watched.now += RETRY_S
    take_over(watched)


@pytest.mark.parametrize("operation", ["read_tagged", "read_hashed"])
def test_a_storage_that_is_away_while_a_version_loads(
    operation: str, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for its return but the next look."""
    watched.follower.look()
    versions.rollback(watched.storage, "v2")

    def away(*_: Any) -> Any:
        raise StorageError("storage must answer, got no connection")

    with monkeypatch.context() as gone:
        gone.setattr(Storage, operation, away)
        assert not watched.follower.look()
        refused = "the current version cannot be read, and v1 goes on: storage must answer, got no connection"
        assert watched.follower.refused == refused
        assert watched.name == "v1"
    take_over(watched)


def test_a_pointer_that_is_away_and_comes_back(watched: Watched) -> None:
    watched.follower.look()
    pointer = Path(str(watched.storage)) / versions.CURRENT
    whole = pointer.read_bytes()
    pointer.unlink()
    assert not watched.follower.look()
    assert "the current version cannot be read, and v1 goes on: " in str(watched.follower.refused)
    pointer.write_bytes(whole)
    assert not watched.follower.look()
    assert watched.follower.refused is None
