"""Throughput: how many queries a second does a server answer, beside the same search called in process?

The 3,963 emoji in 2 shards, a Mixture of Logits with random weights, both on these two cores with the clients. Each
client asks, waits for the answer and asks again, for --seconds; LOADS says how many clients ask how many queries. The
same loads run against a server as one writes it by hand (`by_hand`: one process with FastAPI, torch and batches),
against `serve --single`, and against a FastAPI ingress on the same Serve that answers `{}`, which no search behind
Serve can pass. Beside them a search in this process in batches of 32 (`local.open`). Once in each profile.

    python -m jobs.benches.throughput [--seconds 10] [--shards-apart] [--replicas 2]

Wanted: 32 clients with one query a request ten times the commit before batching (production; five times in profile
local), run in turns on the same machine; with 32 queries a request .7 of the search in process;
no load more than 1.5 times slower than by hand.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx
import tyro
from fastapi import FastAPI
from ray import serve as ray_serve

from jobs.benches.http import ENVIRONMENTS, PORT, in_each_profile, publish, summary
from jobs.benches.record import Record
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import ONGOING_OF_ROUTER, DeploymentSize, ServeArgs
from rails_ray.serving import local

TEXTS = ("pizza", "flag", "dog", "heart", "rain", "car", "moon", "tree")
LOADS = ((1, 1), (32, 1), (1, 32), (8, 32), (32, 32))  # clients, queries of a request
KINDS = ("http", "nothing", "by hand", "single", "in process")
WARM_S = 3.0
STARTS = 7  # tries to connect to a server that starts, each after twice as long a pause: 32 s in all


api = FastAPI()


@ray_serve.deployment(max_ongoing_requests=ONGOING_OF_ROUTER)
@ray_serve.ingress(api)
class Nothing:
    @api.post("/v1/search")
    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Arguments:
    """
    seconds: of each load.
    profile: measure this one in this process; by default both, each in a process of its own.
    label: a name for the rows of this run, such as the commit.
    shards_apart: shards have replicas of their own; by default routers hold them, as `rails-ray serve` does.
    replicas: of each deployment.
    profiles, kinds: which are measured.
    """

    seconds: float = 10.0
    profile: str | None = None
    label: str = ""
    shards_apart: bool = False
    replicas: int = 1
    profiles: tuple[str, ...] = tuple(ENVIRONMENTS)
    kinds: tuple[str, ...] = KINDS


def main(arguments: Arguments) -> None:
    if arguments.profile is not None:
        print(json.dumps(measure(arguments)))
        return
    record = Record("throughput")
    own = {
        "label": arguments.label,
        "shards_in_routers": not arguments.shards_apart,
        "replicas": arguments.replicas,
    }
    for profile, rows in in_each_profile("jobs.benches.throughput", arguments.profiles):
        for row in rows:
            record.row(profile=profile, **own, **row)
            print(profile, row)


def measure(arguments: Arguments) -> list[dict[str, Any]]:
    seconds, rows = arguments.seconds, list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        with cluster(8):
            publish(folder)
            served_here = served(
                ServeArgs(storage=folder, allow_anonymous=True, shards_in_routers=not arguments.shards_apart),
                DeploymentSize(replicas=arguments.replicas),
                port=PORT,
                leave_serve=True,
            )
            with served_here as url:
                if "http" in arguments.kinds:
                    rows += [{"kind": "http", **row} for row in loads(url, seconds)]
                if "nothing" in arguments.kinds:
                    ray_serve.run(Nothing.bind(), name="nothing", route_prefix="/nothing")
                    rows += [{"kind": "nothing", **row} for row in loads(f"{url}/nothing", seconds)]
        servers = {"by hand": ["-m", "jobs.benches.by_hand", folder, str(PORT + 1)], "single": of_single(folder)}
        for kind, command in servers.items():
            if kind in arguments.kinds:
                with process(command, folder) as url:
                    rows += [{"kind": kind, **row} for row in loads(url, seconds)]
        return [*rows, in_process(folder, seconds)] if "in process" in arguments.kinds else rows


def of_single(folder: str) -> list[str]:
    command = ["-m", "rails_ray.cli", "serve", "--single", "--allow-anonymous"]
    return [*command, "--storage", folder, "--port", str(PORT + 1)]


@contextmanager
def process(command: list[str], folder: str) -> Iterator[str]:
    """A server in one process, which finds what a search without a server finds; its URL."""
    own, url = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL), f"http://127.0.0.1:{PORT + 1}"
    body = body_of(0, 3)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=STARTS), timeout=30) as client:
            found = client.post(f"{url}/v1/search", json=body).raise_for_status().json()["results"]
        expected = local.open(folder).search(body["queries"], k=body["k"], cutoff=body["cutoff"]).results
        assert [result["items"] for result in found] == [result.items for result in expected]
        yield url
    finally:
        own.terminate()
        own.wait()


def loads(url: str, seconds: float) -> Iterator[dict[str, Any]]:
    for clients, queries in LOADS:
        asyncio.run(loaded(url, clients, queries, WARM_S))
        yield asyncio.run(loaded(url, clients, queries, seconds))


def body_of(number: int, queries: int) -> dict[str, Any]:
    texts = [TEXTS[(number + offset) % len(TEXTS)] for offset in range(queries)]
    return {"queries": [{"text": text} for text in texts], "k": 10, "cutoff": {"top_k": 10}}


async def loaded(
    url: str, clients: int, queries: int, seconds: float, body_of: Callable[[int, int], dict[str, Any]] = body_of
) -> dict[str, Any]:
    """Ask with so many clients at once, and measure how long each request takes.

    Args:
        body_of: the body of a request, by its number and its number of queries.
    """
    took, refused = list[float](), 0
    ends = time.perf_counter() + seconds

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal refused
        while (started := time.perf_counter()) < ends:
            async with session.post(f"{url}/v1/search", json=body_of(number, queries)) as response:
                await response.read()
            refused += response.status != 200
            took.append(time.perf_counter() - started)
            number += clients

    started = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session, number) for number in range(clients)))
    lasted = time.perf_counter() - started
    facts = {"clients": clients, "queries": queries, "refused": refused}
    return {**facts, "queries_per_s": queries * (len(took) - refused) / lasted, **summary(took)}


def in_process(folder: str, seconds: float) -> dict[str, Any]:
    """Search without a server, in batches of 32."""
    opened = local.open(folder)
    body = body_of(0, 32)
    took = list[float]()
    ends = time.perf_counter() + seconds
    while (started := time.perf_counter()) < ends:
        opened.search(body["queries"], k=body["k"], cutoff=body["cutoff"])
        took.append(time.perf_counter() - started)
    return {
        "kind": "in process",
        "clients": 1,
        "queries": 32,
        "queries_per_s": 32 * len(took) / sum(took),
        **summary(took),
    }


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
