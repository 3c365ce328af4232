"""Which method a request gets: its own, or the version's default search, or brute_force; here and over HTTP."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from rails_ray.errors import DamagedError, UnsupportedError
from rails_ray.families import default_searches
from rails_ray.families.default_searches import DefaultSearch
from rails_ray.families.version import Version
from rails_ray.schema.requests import SearchRequest
from rails_ray.serving import local
from rails_ray.serving.client import Client
from rails_ray.serving.http.api import api_of
from rails_ray.serving.http.single import SingleProcessServer, listening
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.search_defaults import SearchDefaults
from rails_ray.serving.shard_messages import ShardRequest
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage.filesystem import Storage
from support.default_searches import AVERAGE
from support.examples import publish_here
from support.ports import free_port

SHOWN = {"method": "average", "params": {"num_candidates": 12}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    publish_here(folder, num_shards=2)
    default_searches.write(Storage(str(folder)), "v1", AVERAGE)
    return folder


@pytest.fixture(scope="module")
def version(root: Path) -> LocalVersion:
    return local.open(str(root))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[ShardRequest]:
    """Requests that reach the first shard."""
    seen, search = list[ShardRequest](), ShardSearch.search

    def noting(shard: ShardSearch, query: Any, request: ShardRequest, exclude: Any) -> Any:
        if shard.items.first_row == 0:
            seen.append(request)
        return search(shard, query, request, exclude)

    monkeypatch.setattr(ShardSearch, "search", noting)
    return seen


def test_a_request_that_names_no_method_takes_the_default(version: LocalVersion, requests: list[ShardRequest]) -> None:
    answer = version.search(["red", "blue hat"], k=4, cutoff={"top_k": 4})
    assert answer.method == "average"
    [request] = requests
    assert (request.method, request.params.num_candidates) == ("average", 12)
    named = version.search(["red", "blue hat"], k=4, cutoff={"top_k": 4}, method="average", num_candidates=12)
    assert [own.items for own in answer.results] == [own.items for own in named.results]
    assert version.facts["search"] == version.index()["search"]
    assert {name: version.facts["search"][name] for name in SHOWN} == SHOWN
    assert version.facts["search"]["tuned"]["low"] == AVERAGE.low


def test_widths_grow_with_k(version: LocalVersion, requests: list[ShardRequest]) -> None:
    version.search(["red"], k=8)
    version.search(["red"], cutoff={"score": 0.1, "max_items": 10})
    assert [request.params.num_candidates for request in requests] == [24, 30]


@pytest.mark.parametrize(
    ("named", "method", "num_candidates"),
    [
        ({"method": "brute_force"}, "brute_force", 1000),
        ({"method": "average"}, "average", 1000),
        ({"num_candidates": 30}, "brute_force", 30),
        ({"num_probes": 3}, "brute_force", 1000),
        ({"method": None}, "average", 12),
    ],
)
def test_a_request_that_names_something_takes_the_usual(
    version: LocalVersion, requests: list[ShardRequest], named: dict[str, Any], method: str, num_candidates: int
) -> None:
    assert version.search(["red"], k=4, **named).method == method
    [request] = requests
    assert (request.method, request.params.num_candidates) == (method, num_candidates)


def test_feedback_is_of_the_default_search(version: LocalVersion, requests: list[ShardRequest]) -> None:
    version.feedback(["red"], [["item-0"]], cutoff={"top_k": 4})
    assert [request.method for request in requests] == ["average"]


def test_the_server_of_one_process_says_and_takes_it(version: LocalVersion) -> None:
    port = free_port()
    with listening(SingleProcessServer(version), port=port), Client(f"http://127.0.0.1:{port}") as server:
        assert {name: server.index()["search"][name] for name in SHOWN} == SHOWN
        assert server.search(["red"], k=4).method == "average"
        assert server.search(["red"], k=4, method="two_pass").method == "two_pass"
        described = httpx.get(f"http://127.0.0.1:{port}/openapi.json").json()["components"]["schemas"]["SearchRequest"]
        assert "By default the version's own" in described["properties"]["method"]["description"]


def test_the_default_search_is_compared_and_counted_by_its_method(version: LocalVersion) -> None:
    single = SingleProcessServer(version, shadow_fraction=1.0)

    async def scenario() -> None:
        transport = httpx.ASGITransport(api_of(lambda: single))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            body = {"queries": [{"text": "red"}], "k": 4}
            assert (await client.post("/v1/search", json=body)).json()["method"] == "average"
            comparing = single.traffic.shadow._comparing
            assert comparing is not None
            await comparing
            await client.post("/v1/search", json={**body, "method": "brute_force"})

    asyncio.run(scenario())
    assert single.traffic.shadow.recall.num_queries == 1
    assert b'method="average"' in single.instruments.text()


def test_a_version_without_a_default_search(tmp_path: Path) -> None:
    publish_here(tmp_path)
    opened = local.open(str(tmp_path))
    assert opened.facts["search"] == {"method": "brute_force", "params": {}, "tuned": None}
    assert opened.search(["red"], k=3).method == "brute_force"


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        (replace(AVERAGE, method="inverted"), UnsupportedError, "the default search of version v1 must be by one of"),
        (None, DamagedError, "search.json must name a file, got None: choose again with"),
    ],
)
def test_one_that_cannot_be(tmp_path: Path, chosen: DefaultSearch | None, error: type[Exception], message: str) -> None:
    publish_here(tmp_path)
    store = Storage(str(tmp_path))
    if chosen is None:
        store.write("versions/v1/search.json", b"{")
    else:
        default_searches.write(store, "v1", chosen)
    with pytest.raises(error, match=message) as refused:
        local.open(str(tmp_path))
    if chosen is not None:
        assert ", got inverted: choose again with `rails-ray tune --target-recall`" in str(refused.value)


def test_a_server_keeps_the_one_that_it_is_given(root: Path) -> None:
    """By its file, as the replicas of a deployment do."""
    store = Storage(str(root))
    first = default_searches.current(store, "v1")
    opened = local.open(str(root)).engine.version
    default_searches.write(store, "v1", replace(AVERAGE, method="two_pass", params={}))
    request = SearchRequest.model_validate({"queries": [{"text": "red"}]})
    assert SearchDefaults.read(opened, first).method(request) == "average"
    assert SearchDefaults.read(opened).method(request) == "average"
    assert SearchDefaults.read(Version.published(store)).method(request) == "two_pass"
    assert SearchDefaults.read(opened, "none").method(request) == "brute_force"
    default_searches.write(store, "v1", AVERAGE)
