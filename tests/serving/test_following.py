"""Another version takes over while a server answers: no answer is of two, and none is lost."""

import logging
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rails_ray import local
from rails_ray.families import calibrations, default_searches
from rails_ray.schema.requests import SearchRequest
from rails_ray.search.methods.on_gpu import GpuScan
from rails_ray.serving import following
from rails_ray.serving.http import query_log
from rails_ray.serving.http.single import SingleProcessServer
from rails_ray.serving.request_limits import Limits
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.calibrations import STORED
from support.default_searches import AVERAGE
from support.examples import publish_here
from support.followed import (
    BODY,
    NUM_ITEMS,
    Watched,
    answer_of,
    is_answer,
    serving,
    two_versions,
    vectors_of,
)
from support.processes import wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_versions(tmp_path)


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


def test_a_new_calibration_and_default_search_of_the_same_version(tmp_path: Path) -> None:
    """They reach a server that follows; what is in memory stays there."""
    publish_here(tmp_path / "texts")
    watched = Watched(tmp_path / "texts")
    storage, held = watched.storage, watched.server.loaded.shards[0].held.segments[0].searcher
    body = {"queries": [{"text": "red"}], "cutoff": {"coverage": 0.8}}
    default = {"queries": [{"text": "red"}], "k": 4}
    with serving(watched.server) as url:

        def method() -> str:
            return str(httpx.post(f"{url}/v1/search", json=default).json()["method"])

        assert httpx.post(f"{url}/v1/search", json=body).status_code == 409
        calibrations.write(storage, "v1", STORED)
        versions.announce(storage, "v1")
        assert watched.follower.look()
        assert httpx.post(f"{url}/v1/search", json=body).json()["results"][0]["is_calibrated"] is True
        assert not watched.follower.look()
        assert method() == "brute_force"
        default_searches.write(storage, "v1", AVERAGE)
        versions.announce(storage, "v1")
        assert watched.follower.look()
        assert method() == "average"
    assert watched.server.loaded.shards[0].held.segments[0].searcher is held


def test_a_damaged_calibration_of_the_same_version(tmp_path: Path) -> None:
    """It is refused, and the former one goes on."""
    publish_here(tmp_path / "texts")
    calibrations.write(Storage(str(tmp_path / "texts")), "v1", STORED)
    watched = Watched(tmp_path / "texts")
    watched.storage.write("versions/v1/calibration.json", b"{")
    versions.announce(watched.storage, "v1")
    assert not watched.follower.look()
    assert "calibration.json must name a file, got None: calibrate the version again" in str(watched.follower.refused)
    assert watched.server.loaded.engine.cutoffs.calibration is not None


def test_another_version_that_is_calibrated_changes_no_pointer(watched: Watched) -> None:
    before = watched.storage.read_tagged(versions.CURRENT)
    versions.announce(watched.storage, "v2")
    assert watched.storage.read_tagged(versions.CURRENT) == before
    versions.announce(watched.storage, "v1")
    after = watched.storage.read_tagged(versions.CURRENT)
    assert after != before
    assert versions.read_pointer(watched.storage).version == "v1"


def test_an_equal_pointer_is_read_and_nothing_else(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.follower.look()
    monkeypatch.setattr(following, "current_version", _never)
    for _ in range(3):
        assert not watched.follower.look()
    assert watched.follower.refused is None


def _never(*_: Any) -> Any:
    raise AssertionError("this was not to be called")


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


def test_a_server_says_how_a_gpu_scans(folder: Path) -> None:
    server = SingleProcessServer(local.open(str(folder)))
    assert server.index()["gpu_scans"] == server.version.index()["gpu_scans"] == []
    searcher: Any = server.loaded.shards[0].searcher
    searcher.exact = GpuScan(searcher.brute_force, None, kernel="triton 3.7.1 or later is not installed")
    for shown in (server, server.version):
        assert shown.index()["gpu_scans"] == ["triton 3.7.1 or later is not installed"]


def test_a_server_says_which_indexes_a_gpu_does_not_have(folder: Path) -> None:
    server, reason = SingleProcessServer(local.open(str(folder))), "an index hnsw is searched on the CPU"
    assert server.index()["indexes_on_cpu"] == server.version.index()["indexes_on_cpu"] == []
    searcher: Any = server.loaded.shards[0].searcher
    searcher.first_stage.indexes = {"average": SimpleNamespace(on_cpu=reason), "together": SimpleNamespace(on_cpu=None)}
    for shown in (server, server.version):
        assert shown.index()["indexes_on_cpu"] == [reason]


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
