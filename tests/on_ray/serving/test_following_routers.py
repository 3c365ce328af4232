"""Routers and shards on a cluster go on with another version, and take items over HTTP."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from ray import serve as ray_serve
from ray.exceptions import RayActorError

from jobs.benches import chaos_clients
from rails_ray.client import Client
from rails_ray.families import calibrations
from rails_ray.on_ray.serving.plan import NAME, DeploymentSize, ServeArgs
from rails_ray.on_ray.serving.transport.codec import packed, unpacked
from rails_ray.serving import local
from rails_ray.storage import manifest, versions
from rails_ray.storage.filesystem import Storage
from support.calibrations import STORED
from support.data_folders import write_text_data
from support.examples import publish_untrained
from support.one_serve import served
from support.processes import wait_for

KEY = "a-key-of-the-test-1"
BODY: dict[str, Any] = {"queries": [{"text": "red"}, {"text": "blue hat"}], "k": 5}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:
    """A storage of v1 and v2, of other weights, each of two shards, and of v3 of one."""
    folder = tmp_path_factory.mktemp("followed")
    for seed, (version, num_shards) in enumerate({"v1": 2, "v2": 2, "v3": 1}.items()):
        data = write_text_data(folder / "my-data")
        publish_untrained(folder, data, version=version, seed=seed, num_shards=num_shards)
    (folder / "keys").write_text(f"{KEY}\n")
    return folder


@pytest.fixture(params=[False, True], ids=["shards apart", "shards in routers"])
def followed(root: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, str, bool]]:
    versions.rollback(Storage(str(root)), "v1")
    args = ServeArgs(
        storage=str(root), keys_file=str(root / "keys"), follow_s=0.3, change_items=True,
        shards_in_routers=request.param,
    )  # fmt: skip
    with served(args, DeploymentSize(replicas=2)) as url:
        yield root, url, request.param


@pytest.mark.cluster
@pytest.mark.long
def test_versions_change_under_load_and_items_are_stored(followed: tuple[Path, str, bool]) -> None:
    root, url, is_in_routers = followed
    storage = Storage(str(root))
    expected = {
        name: [own.items for own in local.open(str(root), name).search(**BODY).results] for name in ("v1", "v2", "v3")
    }
    assert expected["v1"] != expected["v2"]
    seen, wrong, is_over = list[str](), list[Any](), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
            while not is_over.is_set():
                response = client.post("/v1/search", json=BODY)
                answer = response.json()
                if response.status_code != 200 or expected.get(answer["version"]) != [
                    own["items"] for own in answer["results"]
                ]:
                    wrong.append((response.status_code, answer))
                seen.append(str(answer.get("version")))

    def both_serve(name: str) -> bool:
        return len(seen) > 20 and set(seen[-20:]) == {name}

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    for name in ("v1", "v2", "v1"):
        versions.rollback(storage, name)
        wait_for(lambda name=name: both_serve(name))
    versions.rollback(storage, "v3")
    if is_in_routers:
        wait_for(lambda: both_serve("v3"))
    else:
        wait_for(lambda: "version v3 must have 2 shards, as are deployed, got 1: deploy it anew" in warning(url))
        assert both_serve("v1")
    is_over.set()
    for client in clients:
        client.join()
    assert not wrong

    versions.rollback(storage, "v1")
    with Client(url, key=KEY) as server:
        wait_for(lambda: server.index()["version"] == "v1")
        calibrations.write(storage, "v1", STORED)
        versions.announce(storage, "v1")
        wait_for(lambda: all(server.index()["calibration"] is not None for _ in range(40)))
        assert server.search(["red"], cutoff={"coverage": 0.8}).results[0].is_calibrated
        stored = server.upsert([{"id": "copy", "text": "red car"}])
        assert (stored.num_added, stored.found_within_s) == (1, 0.3)
        wait_for(lambda: server.index()["version"] == stored.version)
        wait_for(lambda: all("copy" in found_in(server) for _ in range(5)))
        with pytest.raises(ValueError, match="items to add must be new to version"):
            server.upsert([{"id": "copy", "text": "red car"}], mode="add")
        assert server.delete(["copy", "nobody"]).num_unknown == 1
        wait_for(lambda: not any("copy" in found_in(server) for _ in range(5)))


@pytest.mark.cluster
@pytest.mark.long
def test_replicas_are_killed_while_versions_change(root: Path) -> None:
    """A shard's or a router's, right after the pointer has changed: no answer is wrong or of two versions, and all
    replicas are of the new version in the end, those that replace the dead too."""
    storage = Storage(str(root))
    versions.rollback(storage, "v1")
    expected = {
        name: [own.items for own in local.open(str(root), name).search(**BODY).results] for name in ("v1", "v2")
    }
    identities = {name: manifest.read(storage, name).contents_sha256 for name in expected}
    args = ServeArgs(storage=str(root), keys_file=str(root / "keys"), follow_s=0.3)
    statuses, seen, wrong, is_over = Counter[int](), list[str](), list[Any](), threading.Event()

    with served(args, DeploymentSize(replicas=2)) as url:

        def ask() -> None:
            with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
                while not is_over.is_set():
                    try:
                        response = client.post("/v1/search", json=BODY)
                    except httpx.TransportError:
                        statuses[0] += 1
                        continue
                    statuses[response.status_code] += 1
                    if response.status_code != 200:
                        continue
                    answer = response.json()
                    if expected.get(answer["version"]) != [own["items"] for own in answer["results"]]:
                        wrong.append(answer)
                    seen.append(answer["version"])

        def num_holding(shard: str, name: str) -> int:
            """How many replicas of a shard answer for a version."""
            question = packed([identities[name], []])
            try:
                handle = ray_serve.get_deployment_handle(shard, NAME)
                answers = handle.broadcast("call", "num_items", question).results()
            except RayActorError:  # of one that is dead, as Serve does not know yet
                return 0
            return sum(unpacked(answer)[1] is not None for answer in answers)

        def all_serve(name: str) -> bool:
            if set(seen[-40:]) != {name} or len(replicas("Router")) != 2:
                return False
            return all(num_holding(shard, name) == 2 for shard in ("Shard000", "Shard001"))

        clients = [threading.Thread(target=ask) for _ in range(3)]
        try:
            for client in clients:
                client.start()
            wait_for(lambda: all_serve("v1"))
            for name, title in (("v2", "Shard001"), ("v1", "Router")):
                [victim, _] = replicas(title)
                versions.rollback(storage, name)
                victim.kill()
                wait_for(lambda name=name: all_serve(name))
                assert victim.pid not in [own.pid for own in replicas(title)]
        finally:
            is_over.set()
            for client in clients:
                client.join()
    assert not wrong
    failed = sum(number for status, number in statuses.items() if status not in (200, 429, 503))
    assert failed <= len(clients), statuses  # those that the router had in hand


def replicas(title: str) -> list[psutil.Process]:
    return chaos_clients.own_processes(f"ServeReplica:{NAME}:{title}")


def found_in(server: Client) -> list[Any]:
    return server.search(["red"], k=100).results[0].items


def warning(url: str) -> str:
    answer = httpx.get(f"{url}/v1/health", headers={"authorization": f"Bearer {KEY}"}, timeout=60)
    return str(answer.json().get("warning"))
