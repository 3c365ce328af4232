"""Routers that hold all shards themselves: the answers of a deployment that asks its shards elsewhere."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import ray
import yaml
from ray.serve.schema import ServeDeploySchema

from rails_ray.errors import DamagedError, UnavailableError
from rails_ray.families.version import Version
from rails_ray.on_ray.serving import in_router
from rails_ray.on_ray.serving.app import application, deploy
from rails_ray.on_ray.serving.in_router import ShardsInRouter
from rails_ray.on_ray.serving.plan import NAME, DeploymentSize, ServeArgs, commented, serve_config
from rails_ray.on_ray.serving.shard import Shard
from rails_ray.on_ray.serving.transport.shards import Shards
from rails_ray.schema.requests import ExplainRequest, SearchRequest
from rails_ray.search.rounds import AskRanker, AskShards, RankerCall, Rounds
from rails_ray.serving import client, gpu_room, local
from rails_ray.serving.engine import Engine
from rails_ray.serving.gpu_room import CONTEXT_BYTES, GpuMemory, needed_bytes
from rails_ray.storage.filesystem import Storage
from support.attributes import random_items, with_attributes
from support.data_folders import write_text_data
from support.examples import publish_here, publish_untrained
from support.one_serve import served
from support.processes import wait_for

QUERIES = [
    {"text": "red"},
    {"text": "blue hat", "exclude": ["item-3", "item-40"]},
    {"text": "hat", "include": ["item-3", "item-40", "item-41", "nowhere"], "exclude": ["item-41"]},
]
BODIES: tuple[dict[str, Any], ...] = (
    {"k": 5},
    {"k": 60, "cutoff": {"top_k": 60}},
    {"k": 5, "method": "two_pass", "num_candidates": 7},
    {"k": 5, "method": "per_embedding", "num_per_embedding": 3, "ids": "string"},
    {"cutoff": {"nucleus": 0.9}},  # which asks the shards twice
    {"cutoff": {"score": 0.1}},
    {"k": 9, "filter": {"price": {"$lt": 10}, "tags": {"$in": ["a", "b"]}}, "fields": ["at", "tags"]},
    {"cutoff": {"probability": 0.05}, "filter": {"$not": {"lang": "fr"}}},
    {"k": 3, "filter": {"year": 1}},
)


def of_handle(shard: Any) -> Any:
    """A shard in this process, asked as Serve's handles are."""
    return SimpleNamespace(call=SimpleNamespace(remote=shard.call))


@pytest.mark.parametrize("num_shards", [1, 2])
def test_answers_are_those_of_shards_elsewhere(tmp_path: Path, num_shards: int) -> None:
    publish_here(tmp_path, num_shards)
    name = with_attributes(Storage(str(tmp_path)), random_items(60)).version
    version = Version.published(Storage(str(tmp_path)))
    engine, here = Engine(version), ShardsInRouter(version)
    handles = [of_handle(Shard.func_or_class(str(tmp_path), name, number)) for number in range(num_shards)]
    elsewhere = Shards(handles, name, version.manifest.contents_sha256, timeout_s=5)

    async def answer(shards: Shards | ShardsInRouter, request: SearchRequest) -> Any:
        answered = await shards.search(engine.search(request), request)
        return answered.head.model_copy(update={"results": list(answered.results)})

    async def scenario() -> None:
        for body in BODIES * 2:  # the first time in a thread, then at once
            request = SearchRequest(queries=QUERIES, **body)
            assert await answer(here, request) == await answer(elsewhere, request)
        explaining = ExplainRequest(query=QUERIES[0], items=["item-59", "item-0"])
        assert await here.carry_out(engine.explain(explaining)) == await elsewhere.carry_out(engine.explain(explaining))
        assert await here.num_items() == await elsewhere.num_items() == [60 // num_shards] * num_shards

    asyncio.run(scenario())


def test_what_may_take_long_is_done_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_here(tmp_path, 1)
    version = Version.published(Storage(str(tmp_path)))
    engine, here = Engine(version), ShardsInRouter(version)
    threads, [shard] = list[int](), here._held.shards
    for name in ("search", "explain"):
        work = getattr(shard, name)
        monkeypatch.setattr(
            shard, name, lambda *asked, work=work: (threads.append(threading.get_ident()), work(*asked))[1]
        )
    request = SearchRequest(queries=QUERIES, k=5)
    asyncio.run(here.search(engine.search(request), request))
    asyncio.run(here.carry_out(engine.explain(ExplainRequest(query=QUERIES[0], items=["item-1"]))))
    assert len(threads) == 2
    assert threading.get_ident() not in threads


def test_the_heavy_ranker_is_asked_between_rounds(tmp_path: Path) -> None:
    publish_here(tmp_path, 2)
    call = RankerCall({"text": "red"}, [])

    class Caller:
        async def ask(self, step: AskRanker) -> list[Any]:
            assert step.calls == [call]
            return ["scores"]

    caller: Any = Caller()
    here = ShardsInRouter(Version.published(Storage(str(tmp_path))), ranker=caller)
    query = Engine(Version.published(Storage(str(tmp_path)))).encoder.check().state

    def rounds() -> Rounds[list[Any]]:
        first = yield AskRanker([call])
        explained = yield AskShards("explain", (query, ["item-0", "item-59"]))
        return [first, [own.items for own in explained], (yield AskRanker([call]))]

    assert asyncio.run(here.carry_out(rounds())) == [["scores"], [["item-0"], ["item-59"]], ["scores"]]


def test_the_health_check_of_a_router_finds_a_shard_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_here(tmp_path, 2)
    version = Version.published(Storage(str(tmp_path)))
    here, query = ShardsInRouter(version), Engine(version).encoder.check().state
    here.check(query)
    last = here._held.shards[-1]
    monkeypatch.setattr(last.searcher, "explain", lambda *_: np.zeros(0)[1])
    with pytest.raises(IndexError):
        here.check(query)


def test_a_router_with_all_shards_has_room_for_their_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_here(tmp_path, 2)
    version = Version.published(Storage(str(tmp_path)))
    of_items = needed_bytes(version, 0) + needed_bytes(version, 1)
    memory = GpuMemory(of_items + CONTEXT_BYTES, of_items + CONTEXT_BYTES, 0)
    monkeypatch.setattr(gpu_room, "gpu_memory", lambda device: memory)
    with pytest.raises(UnavailableError, match="take a larger GPU, or serve its shards by replicas of their own"):
        ShardsInRouter(version, "cuda")


def test_a_router_says_that_it_does_not_use_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_here(tmp_path, 1)
    monkeypatch.setattr(in_router, "unused_gpu", lambda: "Ray has reserved a GPU that torch cannot use")
    assert ShardsInRouter(Version.published(Storage(str(tmp_path)))).gpu_scans == [
        "Ray has reserved a GPU that torch cannot use"
    ]


def test_a_damaged_shard_starts_no_router(tmp_path: Path) -> None:
    part = tmp_path / publish_here(tmp_path, 2).parts[-1].path
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="must have"):
        ShardsInRouter(Version.published(Storage(str(tmp_path))))


def test_the_application_and_its_config_have_no_shards(tmp_path: Path) -> None:
    publish_here(tmp_path, 2)
    args = ServeArgs(storage=str(tmp_path), version="v1", allow_anonymous=True, shards_in_routers=True)
    [shards, bound, _, _] = application(args, DeploymentSize())._bound_deployment.init_args
    assert shards == []
    assert bound.shards_in_routers
    config = serve_config(args, DeploymentSize(replicas=2), 2, host="127.0.0.1", port=8000)
    ServeDeploySchema.model_validate(config)
    assert [own["name"] for own in config["applications"][0]["deployments"]] == ["Router"]
    text = commented(config, "production")
    assert yaml.safe_load(text) == config
    assert "# rails-ray with all shards in each router, profile production;" in text
    assert "shards_in_routers: true  # each replica of the router has the memory of the whole version\n" in text
    assert "Routers call" not in text
    assert "# each router reads the whole version, of any size: print anew for a larger one.\n" in text
    assert "a shard that is not named" not in text
    assert ServeArgs.model_validate(config["applications"][0]["args"]) == args


@pytest.fixture
def replicated(tmp_path: Path, ray_cluster: None) -> Iterator[tuple[Path, str]]:
    """Two routers that hold both shards of v1; v2 has other weights."""
    for seed, version in enumerate(("v1", "v2")):
        publish_untrained(tmp_path, write_text_data(tmp_path / "my-data"), version=version, seed=seed)
    with served(of(tmp_path, "v1"), DeploymentSize(replicas=2)) as url:
        yield tmp_path, url


def of(root: Path, version: str) -> ServeArgs:
    return ServeArgs(storage=str(root), version=version, allow_anonymous=True, shards_in_routers=True)


def routers() -> dict[str, Any]:
    """Serve's actors of the application, by name."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {own["name"]: own["namespace"] for own in named if f"{NAME}#" in own["name"]}


@pytest.mark.cluster
@pytest.mark.long
def test_a_router_that_dies_is_replaced_and_another_version_is_deployed(replicated: tuple[Path, str]) -> None:
    root, url = replicated
    expected = {
        version: [one.model_dump() for one in local.open(str(root), version).search(QUERIES, k=5).results]
        for version in ("v1", "v2")
    }
    assert expected["v1"] != expected["v2"]

    def answered_by() -> str:
        answer = client.search(url, QUERIES, k=5)
        assert answer["results"] == expected[answer["version"]]
        return str(answer["version"])

    assert answered_by() == "v1"
    before = routers()
    assert len(before) == 2
    assert all("#Router#" in name for name in before)
    lost = min(before)
    ray.kill(ray.get_actor(lost, namespace=before[lost]))
    wait_for(lambda: len(routers().keys() - {lost}) == 2)
    health = httpx.get(f"{url}/v1/health", timeout=30)
    assert (health.status_code, health.json()) == (200, {"status": "ok", "version": "v1", "num_shards": 2})
    assert answered_by() == "v1"
    deploy(application(of(root, "v2"), DeploymentSize(replicas=2)), url)
    wait_for(lambda: answered_by() == "v2")
