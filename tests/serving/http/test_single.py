"""A server in one process: over real sockets, the answers of the version itself, keys, refusals, an end."""

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from rails_ray.schema.queries import QueryInput
from rails_ray.schema.requests import SearchRequest
from rails_ray.serving import short_work
from rails_ray.serving.http.single import LOOK_S, SingleProcessServer, listening
from rails_ray.serving.local import LocalVersion
from support.ports import free_port

KEY, OTHER = "a-key-of-the-test-1", "a-key-of-the-test-2"


def search(url: str, *texts: str, **fields: object) -> httpx.Response:
    body = {"queries": [{"text": text} for text in texts], **fields}
    return httpx.post(f"{url}/v1/search", json=body, timeout=30)


def test_its_answers_are_those_of_the_version(url: str, version: LocalVersion) -> None:
    answer = search(url, "red", "blue hat", k=7, cutoff={"top_k": 7}).json()
    assert answer == version.search(["red", "blue hat"], k=7, cutoff={"top_k": 7}).model_dump(mode="json")
    items = answer["results"][0]["items"]
    explained = httpx.post(f"{url}/v1/explain", json={"query": {"text": "red"}, "items": items}).json()
    assert explained == version.explain("red", items).model_dump(mode="json")


def test_what_it_says_of_itself(url: str) -> None:
    assert httpx.get(f"{url}/v1/health").json() == {"status": "ok", "version": "v1", "num_shards": 2}
    index = httpx.get(f"{url}/v1/index").json()
    assert (index["num_items"], index["ranker"]) == (60, None)


def test_an_answer_says_how_long_each_stage_took(url: str) -> None:
    for method in ("brute_force", "per_embedding"):
        answer = search(url, "red", k=5, method=method)
        assert answer.status_code == 200, answer.text
        told = answer.headers["server-timing"]
        took = {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([0-9.]+)", told)}
        assert list(took) == ["queue", "encode", "shards", "candidates", "score", "merge", "cut"]
        assert all(took[name] > 0 for name in ("encode", "shards", "candidates", "score", "merge", "cut"))


def test_refusals_are_those_of_any_server(url: str) -> None:
    refused = search(url, "red", k=0)
    assert (refused.status_code, refused.json()) == (
        422,
        {"error": "k must be greater than or equal to 1, got 0"},
    )
    assert search(url, "red", cutoff={"coverage": 0.9}).status_code == 409
    assert httpx.get(f"{url}/v1/nothing").status_code == 404


def test_clients_at_once_get_what_they_get_alone(url: str) -> None:
    texts = ["red", "blue hat", "tree", "gold ring", "car", "a", "b", "c"]
    alone = {text: search(url, text).json() for text in texts}
    found = dict[str, Any]()
    clients = [
        threading.Thread(target=lambda text=text: found.update({text: search(url, text).json()})) for text in texts
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    for text in texts:
        [own], [other] = alone[text]["results"], found[text]["results"]
        assert own["items"] == other["items"]
        assert own["scores"] == pytest.approx(other["scores"], abs=1e-6)


def test_keys_are_looked_at_again_after_a_second(version: LocalVersion, tmp_path: Path) -> None:
    keys, now = tmp_path / "keys", [0.0]
    keys.write_text(f"{KEY}\n")
    single, port = SingleProcessServer(version, str(keys), clock=lambda: now[0]), free_port()
    with listening(single, port=port):

        def status(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.get(f"http://127.0.0.1:{port}/v1/health", headers=headers).status_code

        assert (status(KEY), status(OTHER)) == (200, 403)
        keys.write_text(f"{OTHER}\n")
        assert status(KEY) == 200
        now[0] += LOOK_S
        assert (status(KEY), status(OTHER)) == (403, 200)
        keys.write_text("short\n")
        now[0] += LOOK_S
        headers = {"authorization": f"Bearer {OTHER}"}
        assert "stay valid" in httpx.get(f"http://127.0.0.1:{port}/v1/health", headers=headers).json()["warning"]


def test_keys_that_let_nobody_in(version: LocalVersion, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keys_file must be a text file of ASCII keys, got"):
        SingleProcessServer(version, str(tmp_path / "missing"))


def test_it_ends_and_its_port_is_free(version: LocalVersion) -> None:
    port = free_port()
    with listening(SingleProcessServer(version), port=port) as server:
        assert server.is_alive()
    assert not server.is_alive()
    with listening(SingleProcessServer(version), port=port):
        assert httpx.get(f"http://127.0.0.1:{port}/v1/health").status_code == 200


def test_a_short_search_needs_no_thread_once_that_is_known(
    version: LocalVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, threads = SingleProcessServer(version), list[str]()
    carry_out = version.carry_out

    def noting(*given: Any) -> Any:
        threads.append(threading.current_thread().name.partition("_")[0])
        return carry_out(*given)

    monkeypatch.setattr(version, "carry_out", noting)
    monkeypatch.setattr(short_work, "SHORT_S", 60.0)
    one, two = SearchRequest(queries=[QueryInput(text="red")]), SearchRequest(queries=2 * [QueryInput(text="red")])

    async def ask() -> None:
        for request in (one, one, two, two, one.model_copy(update={"method": "average"})):
            await server.traffic.search(request)
        monkeypatch.setattr(short_work, "SHORT_S", 0.0)
        await server.traffic.search(one)
        monkeypatch.setattr(short_work, "SHORT_S", 60.0)
        monkeypatch.setattr(version, "ranker", object())
        await server.traffic.search(one)

    asyncio.run(ask())
    assert threads == ["search", "MainThread", "search", "MainThread", "search", "search", "search"]
