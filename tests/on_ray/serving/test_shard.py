"""What a shard says of versions that lack what a search reads: in this process, and over HTTP."""

import asyncio
import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import torch

from rails_ray.errors import DamagedError, LostGpuError, UnavailableError, UnsupportedError
from rails_ray.families.config import to_json
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.version import Version
from rails_ray.modules import weight_files
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.similarities.states import take
from rails_ray.on_ray.serving import shard as shard_module
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.serving.shard import Shard, ShardAnswers
from rails_ray.on_ray.serving.transport.listener import Address
from rails_ray.on_ray.serving.transport.replicas import Replicas
from rails_ray.on_ray.serving.transport.shards import Shards
from rails_ray.schema.requests import SearchRequest
from rails_ray.schema.responses import SearchResponse
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.methods.on_gpu import GpuScan
from rails_ray.search.searcher import METHODS
from rails_ray.serving import client, gpu_faults
from rails_ray.serving.encoder import EncodedQueries
from rails_ray.serving.engine import Engine
from rails_ray.serving.shard_messages import ShardRequest
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage import manifest, parts, versions
from rails_ray.storage.described import WEIGHTS
from rails_ray.storage.filesystem import Storage
from support.examples import part_of, random_states, small_config
from support.ports import free_port

CONFIG = small_config().with_family(loss=ContrastiveConfig(kind="sampled_softmax"))
QUERY, ITEMS = random_states(2, 30, p_q=2, p_x=2, width=6)


def publish_without(folder: Path, column: str, p_x: int = 2, shard_items: tuple[int, ...] = (30,)) -> None:
    """A version whose parts are written without a column."""
    store = Storage(str(folder))
    planned = parts.plan(list(shard_items), part_items=30)
    items = ITEMS if p_x == 2 else random_states(1, 30, p_q=2, p_x=p_x, width=5)[1]
    items = items if column not in ("average", "gate") else replace(items, **{column: None})
    for part in planned:
        own = take(items, slice(part.first_row, part.first_row + part.num_items))
        parts.write_part(store, "v1", part, part_of(own, part.first_row))
    files = [
        (manifest.CONFIG, to_json(CONFIG)),
        (WEIGHTS, weight_files.to_bytes(DualEncoderTraining.of(CONFIG).model())),
    ]
    encoded = parts.finish(store, "v1", planned, run="r", query={"text": "string"}, files=files, cutoff_mass=None)
    versions.publish(store, encoded, "2026-01-01T00:00:00Z")


def shard_without(folder: Path, column: str, p_x: int = 2) -> Shard:
    publish_without(folder, column, p_x)
    return Shard.func_or_class(str(folder), "v1", 0)


def answers(shard: Shard) -> ShardAnswers:
    """What it answers of its version."""
    found = shard.of(shard.identity)
    assert found is not None
    return found


def searched(shard: Shard) -> ShardSearch:
    return answers(shard).shard


def asked(shard: Shard, method: str) -> list[list[str]]:
    return (
        searched(shard)
        .search(QUERY, ShardRequest(method, SearchParams(num_candidates=10, num_per_embedding=10), 5), [[], []])
        .item_ids
    )


def test_without_the_average_other_methods_answer_as_ever(tmp_path: Path) -> None:
    shard = shard_without(tmp_path, "average")
    assert searched(shard).searcher.items.average is None
    assert torch.equal(searched(shard).searcher.items.components, ITEMS.components)
    assert asked(shard, "two_pass") == asked(shard, "brute_force")
    for method in ("average", "combined"):
        with pytest.raises(
            ValueError,
            match="need the column 'average' of the index, got one without it: encode a new version, or take another",
        ):
            asked(shard, method)


LACKING = {
    "coverage": "cutoff coverage needs a version that is calibrated, got one that is not",
    "mass": "cutoff mass needs a model with a trained tau_q, got one without (loss sampled_softmax)",
}


class Handle:
    """A shard in this process, asked as Serve's handles are; it fails where it is told to."""

    def __init__(self, shard: Shard, failing: str | None = None) -> None:
        self.shard = shard
        self.failing = failing

        self.call = SimpleNamespace(remote=self._call)

    async def _call(self, method: str, message: bytes) -> bytes:
        if method == self.failing:
            raise TimeoutError
        found: bytes = await self.shard.call(method, message)
        return found


def router_of(folder: Path, failing: str | None) -> tuple[Engine, Shards]:
    """What a router consists of, over two shards of which the first fails in a method."""
    published = Version.published(Storage(str(folder)))
    handles = [
        Handle(Shard.func_or_class(str(folder), "v1", number), failing if number == 0 else None) for number in range(2)
    ]
    engine = Engine(published)
    engine.encoder = lambda queries, supports: EncodedQueries(QUERY, [[] for _ in queries], [True] * len(queries))
    return engine, Shards(handles, "v1", published.manifest.contents_sha256, timeout_s=5)


@pytest.mark.parametrize("failing", ["log_sum_exp", "search"])
def test_a_shard_that_fails_in_one_round_of_a_nucleus_is_in_neither(tmp_path: Path, failing: str) -> None:
    """Its items are in the normaliser and in the lists, or in none of them; and the answer says so."""
    publish_without(tmp_path, "average", shard_items=(12, 18))
    queries = [{"text": "red"}, {"text": "blue"}]

    def answer(failing: str | None, **fields: Any) -> SearchResponse:
        request = SearchRequest(queries=queries, cutoff={"nucleus": 0.9}, **fields)
        engine, shards = router_of(tmp_path, failing)
        answered = asyncio.run(shards.carry_out(engine.search(request)))
        return answered.head.model_copy(update={"results": list(answered.results)})

    whole = answer(None)
    assert whole.is_exact
    with pytest.raises(UnavailableError, match="100% of 30 items must be searched"):
        answer(failing)
    some = answer(failing, min_coverage=0.5)
    assert (some.coverage.items_searched, some.is_exact) == (18, False)
    best = BruteForce(DualEncoderTraining.of(CONFIG).similarity(), ITEMS)
    best.similarity.load_state_dict(DualEncoderTraining.of(CONFIG).model().similarity.state_dict())
    for line, result in enumerate(some.results):
        assert {int(item[1:]) >= 12 for item in result.items} == {True}
        if failing == "log_sum_exp":  # the normaliser is that of the items that were searched
            scores = best.scores(QUERY)[line, 12:].sort(descending=True).values
            held = (scores / CONFIG.family.similarity.temperature).softmax(0).cumsum(0)
            assert result.num_kept == int((held < 0.9).sum()) + 1


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.usefixtures("no_serve")
def test_over_http_what_a_version_lacks_is_told_and_the_rest_answers(tmp_path: Path) -> None:
    publish_without(tmp_path, "average")
    body = {"queries": [{"text": "red"}], "k": 5, "cutoff": {"top_k": 5}}
    with served(ServeArgs(storage=str(tmp_path), allow_anonymous=True), port=free_port()) as url:
        answers = {
            method: httpx.post(f"{url}/v1/search", json=body | {"method": method}, timeout=30) for method in METHODS
        }
        for cutoff, message in LACKING.items():
            response = httpx.post(f"{url}/v1/search", json=body | {"cutoff": {cutoff: 0.9}}, timeout=30)
            assert response.status_code == 409
            assert message in response.json()["error"]
            with pytest.raises(UnsupportedError, match=re.escape(message)):
                client.search(url, body["queries"], cutoff={cutoff: 0.9})
    for method in ("average", "combined"):
        refused = answers.pop(method)
        assert (refused.status_code, refused.json()) == (
            422,
            {
                "error": "methods average and combined need the column 'average' of the index, got one without it: "
                "encode a new version, or take another method"
            },
        )
    assert {method: answer.status_code for method, answer in answers.items()} == {
        "brute_force": 200,
        "two_pass": 200,
        "per_embedding": 200,
    }
    exact, two_pass = (answers[method].json()["results"][0]["items"] for method in ("brute_force", "two_pass"))
    assert two_pass == exact


@pytest.mark.parametrize("method", METHODS)
def test_without_gates_a_mixture_cannot_be_searched(tmp_path: Path, method: str) -> None:
    with pytest.raises(ValueError, match="must have the column 'gate' of its items, got an index without it"):
        asked(shard_without(tmp_path, "gate"), method)


def test_components_that_are_not_those_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="must have 2 components, as their similarity has, got 3: encode a new"):
        shard_without(tmp_path, "none", p_x=3)


def test_what_many_items_took_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = shard_without(tmp_path, "none")
    num_given_back = list[int]()
    monkeypatch.setattr(shard_module, "give_back_soon", lambda: num_given_back.append(1))
    monkeypatch.setattr(shard_module, "MANY_ITEMS", 30)
    for k, expected in ((14, 0), (15, 1)):  # of two queries
        asyncio.run(answers(shard).search(QUERY, ShardRequest("brute_force", SearchParams(), k), [[], []]))
        assert len(num_given_back) == expected


def test_work_of_a_shard_is_not_done_where_it_answers_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the event loop, all other requests would wait for it."""
    shard = shard_without(tmp_path, "none")
    threads = list[int]()

    def noted(name: str) -> Any:
        work = getattr(searched(shard).searcher, name)
        return lambda *arguments: (threads.append(threading.get_ident()), work(*arguments))[1]

    for name in ("search", "log_sum_exp", "explain"):
        monkeypatch.setattr(searched(shard).searcher, name, noted(name))
    one = take(QUERY, slice(1))
    for ask in (
        answers(shard).search(QUERY, ShardRequest("brute_force", SearchParams(), 5), [[], []]),
        answers(shard).log_sum_exp(QUERY, [[], []]),
        answers(shard).explain(one, ["i3", "elsewhere", "i0"]),
    ):
        answer = asyncio.run(ask)
    assert answer.items == ["i3", "i0"]
    assert len(threads) == 3
    assert threading.get_ident() not in threads


def test_serve_waits_for_what_a_shard_was_asked_directly(tmp_path: Path) -> None:
    shard = shard_without(tmp_path, "nothing")

    async def scenario() -> None:
        assert shard.__del__() is None  # nobody has asked
        place = urlsplit((await shard.address()).url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        ended = shard.__del__()
        assert ended is not None
        await ended
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(place.hostname, place.port)
        assert shard.__del__() is None

    asyncio.run(scenario())


def lose_gpu(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on CUDA answers every call of this replica with an error."""

    def lost(*_: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    shard.device = searched(shard).device = "cuda"
    monkeypatch.setattr(gpu_faults, "one_and_one", lost)
    monkeypatch.setattr(searched(shard), "search", lost)


def test_a_replica_that_loses_its_gpu_fails_its_health_check_and_another_one_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_without(tmp_path, "none")
    published = Version.published(Storage(str(tmp_path)))
    bad, good = (Shard.func_or_class(str(tmp_path), "v1", 0) for _ in range(2))
    request = ShardRequest("brute_force", SearchParams(), 5)
    expected = searched(good).search(QUERY, request, [[], []])
    asyncio.run(bad.check_health())
    lose_gpu(bad, monkeypatch)
    for refused in (bad.check_health(), bad.address(), answers(bad).search(QUERY, request, [[], []])):
        with pytest.raises(LostGpuError, match="device cuda must work, got an error"):
            asyncio.run(refused)

    class InTurn:
        """Serve's handle of both replicas."""

        def __init__(self) -> None:
            self.asked = list[Shard]()
            self.call = SimpleNamespace(remote=self._call)

        async def _call(self, method: str, message: bytes) -> bytes:
            self.asked.append(good if self.asked else bad)
            found: bytes = await self.asked[-1].call(method, message)
            return found

    handle = InTurn()
    shards = Shards([handle], "v1", published.manifest.contents_sha256, timeout_s=5)
    [answer] = asyncio.run(shards.ask("search", QUERY, request, [[], []]))
    assert handle.asked == [bad, good]
    assert answer.item_ids == expected.item_ids
    assert torch.equal(answer.found.scores, expected.found.scores)


def test_a_replica_says_that_it_does_not_use_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "unused_gpu", lambda: "Ray has reserved a GPU that torch cannot use")
    shard = shard_without(tmp_path, "none")

    async def scenario() -> None:
        assert (await shard.address()).gpu_scan == "Ray has reserved a GPU that torch cannot use"
        ended = shard.__del__()
        assert ended is not None
        await ended

    asyncio.run(scenario())


def test_routers_learn_how_the_gpus_of_replicas_scan(tmp_path: Path) -> None:
    shard = shard_without(tmp_path, "none")
    assert asyncio.run(shard.address()).gpu_scan is None
    searcher: Any = searched(shard).searcher
    searcher.exact = GpuScan(searcher.brute_force, None, kernel="fused")
    searcher.first_stage.indexes = {"average": SimpleNamespace(on_cpu="an index hnsw is searched on the CPU")}

    class Broadcasting:
        def broadcast(self, method: str) -> Any:
            async def results_async(**_: Any) -> list[Address]:
                return [await shard.address()]

            return SimpleNamespace(results_async=results_async)

    async def scenario() -> None:
        replicas = Replicas(Broadcasting(), shard.identity)
        shards = Shards([], "v1", shard.identity, 5, direct=[replicas, replicas])
        assert shards.gpu_scans == shards.indexes_on_cpu == []
        await replicas.look()
        assert shards.gpu_scans == ["fused"]
        assert shards.indexes_on_cpu == ["an index hnsw is searched on the CPU"]
        replicas.leave()
        ended = shard.__del__()
        assert ended is not None
        await ended

    asyncio.run(scenario())
