"""The bench of chaos in a small form: overload, slow senders and greedy requests on a server of few places.

Replicas that die and versions that are swapped are in `test_deploying`, on clusters of both profiles.
"""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from ray import serve as ray_serve

from jobs.benches import chaos_clients
from jobs.benches import chaos_faults as chaos
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import NAME, DeploymentSize, ServeArgs
from rails_ray.on_ray.serving.transport.codec import packed
from rails_ray.on_ray.serving.transport.frames import ASK, HELLO, frame
from support.data_folders import write_text_data
from support.examples import publish_untrained
from support.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

MOST_REQUESTS, MOST_ITEMS = 4, 200
TEXTS = ["red", "blue hat", "gold ring"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, no_serve: None) -> Iterator[chaos_clients.Server]:
    root: Path = tmp_path_factory.mktemp("chaos")
    publish_untrained(root, write_text_data(root / "my-data"))
    args = ServeArgs(storage=str(root), allow_anonymous=True, max_requests=MOST_REQUESTS, max_answered_items=MOST_ITEMS)
    expected = chaos_clients.offline(str(root), ["v1"], TEXTS, chaos_clients.K)
    with served(args, DeploymentSize(), port=free_port()) as url:
        yield chaos_clients.Server(url, TEXTS, expected, lambda version: None, chaos_clients.own_processes)


def test_beyond_its_places_a_server_refuses_at_once_and_answers_as_many_as_before(server: chaos_clients.Server) -> None:
    few = asyncio.run(chaos.asked_by(server, MOST_REQUESTS, 5))
    many = asyncio.run(chaos.asked_by(server, 8 * MOST_REQUESTS, 8))
    again = asyncio.run(chaos.asked_by(server, MOST_REQUESTS, 5))
    for own in (few, again):
        assert (own["refused"], own["failed"], own["wrong"]) == (0, 0, 0)
    assert many["refused"] > 0
    assert (many["failed"], many["wrong"]) == (0, 0)
    assert many["p99_s"] < 5  # none waits behind the others
    assert many["per_s"] > 0.4 * min(few["per_s"], again["per_s"])  # of a noisy machine; the bench has the figure


def test_the_router_asks_shards_directly_and_nobody_else_can(server: chaos_clients.Server) -> None:
    asyncio.run(chaos.asked_by(server, 1, 2))
    (router,) = server.replicas("ServeReplica:rails-ray:Router")
    for shard in ("Shard000", "Shard001"):
        (address,) = ray_serve.get_deployment_handle(shard, NAME).broadcast("address").results()
        url = httpx.URL(address.url)
        assert any(
            connection.status == psutil.CONN_ESTABLISHED and tuple(connection.raddr) == (url.host, url.port)
            for connection in router.net_connections()
        )
        with socket.create_connection((url.host, url.port)) as stranger:
            question = packed([address.identity, []])
            stranger.sendall(b"".join(frame(0, HELLO, 0, b"no key") + frame(1, ASK, 1000, b"num_items\0", question)))
            assert stranger.recv(1) == b""


def test_slow_bodies_keep_nobody_out(server: chaos_clients.Server) -> None:
    """More than 100 of them, which is what a router without a bound of its own would answer at once."""
    found = asyncio.run(chaos.beside_slow_senders(server, chaos.slow_body({}), 150, 2, 5))
    assert found["requests"] > 0
    assert (found["failed"], found["refused"], found["wrong"]) == (0, 0, 0)
    assert found["p99_s"] < 5


def test_slow_headers_are_not_waited_for(server: chaos_clients.Server) -> None:
    found = asyncio.run(chaos.beside_slow_senders(server, chaos.slow_headers({}), 20, 1, 16))
    assert found["closed_s"] < 15
    assert (found["failed"], found["refused"], found["wrong"]) == (0, 0, 0)


def test_a_greedy_request_is_refused_in_a_sentence(server: chaos_clients.Server) -> None:
    def ask(num_queries: int, **body: object) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/search", json={"queries": [{"text": "red"}] * num_queries, **body})

    assert ask(4, k=50, cutoff={"top_k": 50}).status_code == 200
    refused = ask(4, k=51, cutoff={"top_k": 51})
    expected = {"error": "queries times k must be at most 200 items, got 4 x 51: ask fewer queries at once"}
    assert (refused.status_code, refused.json()) == (422, expected)
    by_score = ask(10, cutoff={"score": -1})  # names no number: as many as there is room for
    assert [one["num_kept"] for one in by_score.json()["results"]] == [20] * 10
    assert all(one["is_truncated"] for one in by_score.json()["results"])


def test_a_request_that_no_router_answers_does_not_hang(server: chaos_clients.Server) -> None:
    """Last of the module: a router stands still, and Serve replaces it some time later."""
    (router,) = server.replicas("ServeReplica:rails-ray:Router")
    router.suspend()
    try:
        response = httpx.post(f"{server.url}/v1/search", json={"queries": [{"text": "red"}]}, timeout=60)
        assert response.status_code == 408
    finally:
        router.kill()
