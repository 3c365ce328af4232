"""Another version takes over while a server answers: no answer is of two, none is lost, and what cannot be served is
refused."""

import json
import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from rails_ray import local
from rails_ray.errors import StorageError
from rails_ray.schema.ranker import RankerConfig
from rails_ray.schema.requests import SearchRequest
from rails_ray.serving import following, room
from rails_ray.serving.engine import Limits
from rails_ray.serving.following import RETRY_S, Follower
from rails_ray.serving.http import query_log
from rails_ray.serving.http.single import SingleProcessServer, listening
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.examples import publish_here
from support.ports import free_port
from support.processes import wait_for

WIDTH, NUM_ITEMS = 6, 40
BODY = {"queries": [{"embedding": [1.0, 0.5, -0.5, 0.25, 2.0, -1.0]}, {"embedding": [0.0, 1, 0, 0, 0, 1]}], "k": 7}


def vectors_of(seed: int, num_items: int = NUM_ITEMS) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((num_items, WIDTH)).astype(np.float32)


def build(folder: Path, version: str, seed: int) -> local.Version:
    """A version that becomes current, whose titles name it."""
    titles = [f"{version}-{row}" for row in range(NUM_ITEMS)]
    return local.build(vectors_of(seed), titles=titles, folder=str(folder), version=version)


def answer_of(version: local.Version) -> dict[str, Any]:
    found: dict[str, Any] = version.search(**BODY).model_dump(mode="json")
    return found


def is_answer(given: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether an answer is the expected one, but for the rounding of scores that were computed together with others."""
    rounded = [dict(result, scores=np.round(result["scores"], 4).tolist()) for result in given["results"]]
    wanted = [dict(result, scores=np.round(result["scores"], 4).tolist()) for result in expected["results"]]
    return {**given, "results": rounded} == {**expected, "results": wanted}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A storage of v1, which is current, and v2."""
    build(tmp_path, "v1", 1)
    build(tmp_path, "v2", 2)
    versions.rollback(Storage(str(tmp_path)), "v1")
    return tmp_path


class Watched:
    """A server of the current version, whose follower looks when it is called, by a clock that the test moves."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.storage, self.now = Storage(str(folder)), 0.0
        self.server = SingleProcessServer(local.open(str(folder), limits=Limits()), **options)
        self.follower = Follower(self.server, self.storage, clock=lambda: self.now)
        self.server.follower = self.follower

    @property
    def name(self) -> str:
        return self.server.served.name

    def health(self) -> dict[str, Any]:
        with serving(self.server) as url:
            found: dict[str, Any] = httpx.get(f"{url}/v1/health").json()
            return found


@contextmanager
def serving(server: SingleProcessServer) -> Iterator[str]:
    """The address of a server while the block lasts."""
    port = free_port()
    with listening(server, port=port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def watched(folder: Path) -> Watched:
    return Watched(folder)


def test_answers_are_whole_while_versions_change(folder: Path) -> None:
    """Thirty times, under load: each answer is one whole answer of the version that it names, and none fails."""
    expected = {name: answer_of(local.open(str(folder), name)) for name in ("v1", "v2")}
    seen, wrong, is_over = set[str](), list[Any](), threading.Event()
    server = SingleProcessServer(local.open(str(folder), limits=Limits()), follow_s=0.02)

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, timeout=30) as client:
            while not is_over.is_set():
                response = client.post("/v1/search", json=BODY)
                answer = response.json()
                if response.status_code != 200 or not is_answer(answer, expected[answer["version"]]):
                    wrong.append(answer)
                seen.add(str(answer.get("version")))

    with serving(server) as url:
        clients = [threading.Thread(target=ask, args=(url,)) for _ in range(3)]
        for client in clients:
            client.start()
        for turn in range(30):
            name = ("v2", "v1")[turn % 2]
            versions.rollback(Storage(str(folder)), name)
            wait_for(lambda name=name: server.version_name == name)
        is_over.set()
        for client in clients:
            client.join()
    assert not wrong
    assert seen == {"v1", "v2"}


def test_a_search_ends_with_the_version_that_it_began_with(watched: Watched, folder: Path) -> None:
    loaded, expected = watched.server.loaded, answer_of(local.open(str(folder), "v1"))
    rounds = loaded.engine.search(SearchRequest(**BODY))
    asked = next(rounds)
    versions.rollback(watched.storage, "v2")
    assert watched.follower.look()
    assert (watched.name, watched.server.version.manifest.version) == ("v2", "v2")
    with pytest.raises(StopIteration) as ended:
        rounds.send([getattr(shard, asked.method)(*asked.arguments) for shard in loaded.shards])
    answered = ended.value.value
    found = answered.head.model_copy(update={"results": list(answered.results)})
    assert found.model_dump(mode="json") == expected


def test_a_former_version_leaves_no_trace_in_memory(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes with its last request, without a collection of garbage; what it held is given back at the next look."""
    num_trimmed = list[int]()
    monkeypatch.setattr(following, "trim", lambda: num_trimmed.append(1))
    with serving(watched.server) as url:
        httpx.post(f"{url}/v1/search", json=BODY).raise_for_status()
        former = weakref.ref(watched.server.loaded)
        versions.rollback(watched.storage, "v2")
        assert watched.follower.look()
        httpx.post(f"{url}/v1/search", json=BODY).raise_for_status()
        wait_for(lambda: former() is None)
        assert not num_trimmed
        watched.follower.look()
        watched.follower.look()
    assert num_trimmed == [1]


def test_a_delta_is_loaded_alone(watched: Watched) -> None:
    writer = local.open(str(watched.storage))
    writer.add(vectors_of(9, 2), [100, 101], titles=["new", "newer"])
    base = watched.server.loaded.shards[0].held.segments[0].searcher
    size = watched.server.loaded.bytes_to_load(writer.version)
    assert size == sum(part.size_bytes for part in writer.manifest.parts if part.delta is not None)
    assert watched.follower.look()
    assert not watched.follower.look()
    assert watched.server.loaded.shards[0].held.segments[0].searcher is base
    assert watched.server.index()["num_items"] == NUM_ITEMS + 2


def test_an_equal_pointer_is_read_and_nothing_else(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.follower.look()
    monkeypatch.setattr(following, "current_version", _never)
    for _ in range(3):
        assert not watched.follower.look()
    assert watched.follower.refused is None


def _never(*_: Any) -> Any:
    raise AssertionError("this was not to be called")


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


def test_what_live_queries_told_begins_anew_and_counts_go_on(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(folder, shadow_fraction=1.0, on_search=query_log.note)
    body = BODY | {"method": "ann"}

    def metrics() -> dict[tuple[str, ...], float]:
        families = text_string_to_metric_families(watched.server.instruments.text().decode())
        return {(own.name, *own.labels.values()): own.value for family in families for own in family.samples}

    with serving(watched.server) as url, caplog.at_level(logging.INFO, query_log.log.name):
        httpx.post(f"{url}/v1/search", json=body, headers={"x-request-id": "mine"}).raise_for_status()
        wait_for(lambda: watched.server.traffic.shadow.recall.num_queries == 2)
        before = metrics()
        assert before["rails_ray_version", "v1"] == 1
        assert before["rails_ray_shadow_recall", "mean"] == 1
        local.open(str(folder), "v1").delete([3])
        assert watched.follower.look()
        found = metrics()
        index = httpx.get(f"{url}/v1/index").json()
        httpx.post(f"{url}/v1/search", json=body, headers={"x-request-id": "yours"}).raise_for_status()
        after = metrics()
    name = watched.name
    assert name != "v1"
    assert {key for key in found if key[0] == "rails_ray_version"} == {("rails_ray_version", name)}
    assert np.isnan(found["rails_ray_shadow_recall", "mean"])
    assert found["rails_ray_shadow_queries",] == 0
    assert (found["rails_ray_items", "live"], found["rails_ray_items", "hidden"]) == (NUM_ITEMS - 1, 1)
    assert (found["rails_ray_deltas",], found["rails_ray_compaction_due",]) == (0, 0)
    assert found["rails_ray_version_refused",] == 0
    assert found["rails_ray_version_since_seconds",] > found["rails_ray_version_created_seconds",] - 1
    assert after["rails_ray_requests_total", "/v1/search", "200"] == 2
    assert (index["version"], index["shadow"]["num_queries"], index["num_hidden"]) == (name, 0, 1)
    assert (index["num_deltas"], index["num_in_deltas"], index["is_compaction_due"]) == (0, 0, False)
    assert index["served_since"] >= index["created_at"]
    assert index["follows_every_s"] == following.EVERY_S
    said = [message.partition(": ")[0] for message in caplog.messages if "request" in message]
    assert said == ["version v1, request mine", f"version {name}, request yours"]


def test_a_server_that_does_not_follow_says_so(folder: Path) -> None:
    index = SingleProcessServer(local.open(str(folder))).index()
    assert index["follows_every_s"] is None


def test_a_server_begins_with_what_is_current_now(folder: Path) -> None:
    """As a worker must that replaces another one: it was forked from a process that holds an earlier version."""
    server = SingleProcessServer(local.open(str(folder)), follow_s=60)
    versions.rollback(Storage(str(folder)), "v2")
    with serving(server) as url:
        assert httpx.get(f"{url}/v1/health").json()["version"] == "v2"


def test_a_follower_looks_when_it_is_told(folder: Path) -> None:
    server = SingleProcessServer(local.open(str(folder)), follow_s=3600)
    assert server.follower is not None
    with serving(server):
        versions.rollback(Storage(str(folder)), "v2")
        server.follower.look_soon()
        wait_for(lambda: server.version_name == "v2")
    looks = _threads("follow")
    wait_for(lambda: not any(thread.is_alive() for thread in looks))


def _threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]
