"""Nodes: what do clients see while versions change on a cluster of three nodes, and nodes are lost and come back?

Two versions of the emoji, as in `chaos`, in 4 shards, two replicas of each deployment; the head has replicas too. Some
clients ask the proxy of the head, as many that of the node to which something happens. Each answer is compared with
that of the version that it names. In the table: what becomes of the first ones' requests, as in `chaos`; how many
requests the others made, and how many failed; the seconds until Ray misses a node (`missed_s`), and until all replicas
are there again, none beside another of its deployment (`whole_s`).

    python -m jobs.benches.nodes [--profiles local production] [--clients 2] [--seconds 20]

A yes is no wrong answer anywhere, and answers for all clients of other nodes some seconds after a node is lost.
"""

import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx
import pyarrow as pa
import tyro
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

from jobs.benches.chaos import ENVIRONMENTS, TEXTS, VERSIONS, publish, show
from jobs.benches.chaos_clients import K, Server, Truth
from jobs.benches.chaos_faults import asked_by, served, swapped
from jobs.benches.nodes_cluster import SeveralNodes, several_nodes, until
from jobs.benches.record import Record, last_execution
from rails_ray.families import changing, encoding
from rails_ray.families.encoding import EncodeOptions
from rails_ray.families.in_process import InProcess
from rails_ray.on_ray.serving.plan import NAME, DeploymentSize, ServeArgs, serve_config
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage

PORT, NUM_SHARDS = 8324, 4
SHARED = "/var/tmp"  # which all nodes have, as they would a mounted folder
SHORT_S = 5.0  # of a cut that ends before Ray misses the node


@dataclass(frozen=True)
class ServedOnNodes:
    """A version that nodes serve and follow, in two replicas of each deployment."""

    nodes: SeveralNodes
    storage: str
    texts: Sequence[str]
    port: int

    @property
    def serve(self) -> ServeSubmissionClient:
        return ServeSubmissionClient(self.nodes.url)

    def deploy(self, num_shards: int) -> float:
        """Deploy the current version; returns the seconds until all replicas run."""
        args = ServeArgs(storage=self.storage, allow_anonymous=True, follow_s=0.5)
        placement = DeploymentSize(replicas=2, num_cpus=0.05, nodes=len(self.nodes.nodes))
        self.serve.deploy_applications(serve_config(args, placement, num_shards, host="0.0.0.0", port=self.port))
        return until(lambda: len(self.places()) == 1 + num_shards and self.is_whole())

    def places(self) -> dict[str, list[str]]:
        """The ids of the live nodes with a replica of each deployment that runs."""
        application = self.serve.get_serve_details()["applications"][NAME]
        alive = set(self.nodes.alive().values())
        return {
            name: [own["node_id"] for own in found["replicas"] if own["state"] == "RUNNING" and own["node_id"] in alive]
            for name, found in application["deployments"].items()
        }

    def is_whole(self) -> bool:
        """Return whether each deployment has two replicas, on two nodes."""
        with suppress(httpx.HTTPError, KeyError):
            return all(len(own) == len(set(own)) == 2 for own in self.places().values())
        return False

    def at(self, number: int, k: int = K) -> Server:
        """The server as the proxy of a node shows it."""
        url = f"http://{self.nodes.nodes[number].address}:{self.port}"
        truth = Truth(self.storage, self.texts, k)
        return Server(url, self.texts, truth, self.swap, lambda title: [], k=k)

    def swap(self, version: str) -> None:
        versions.rollback(Storage(self.storage), version)

    def add(self, items: pa.Table) -> str:
        """The version that is current once these are added."""
        return changing.add(Storage(self.storage), items).manifest.version

    async def lost(
        self, number: int, num_clients: int, lose: Callable[[], None], *, asked: int = 0, seconds: float = 5
    ) -> dict[str, float]:
        """A node is lost under load, and its replicas start on another one.

        Args:
            lose: makes the node be lost.
            asked: the node whose clients count.
            seconds: after all is whole again.
        """
        async with self.at(asked).clients(num_clients) as others, self.at(number).clients(num_clients) as its:
            await asyncio.gather(others.answers(5 * num_clients), its.answers(5 * num_clients))
            began, address = time.monotonic(), self.nodes.nodes[number].address
            await asyncio.to_thread(lose)
            missed_s = await asyncio.to_thread(until, lambda: address not in self.nodes.alive())
            whole_s = missed_s + await asyncio.to_thread(until, self.is_whole)
            await asyncio.sleep(seconds)
            of_its = its.outcome(began)
            return {
                **others.outcome(began),
                "its_requests": of_its["requests"],
                "its_failed": of_its["failed"] + of_its["refused"],
                "its_wrong": of_its["wrong"],
                "missed_s": missed_s,
                "whole_s": whole_s,
            }


@dataclass(frozen=True)
class Arguments:
    profiles: tuple[str, ...] = tuple(ENVIRONMENTS)
    """Profiles of the server; each is measured in a process of its own."""
    here: str | None = None
    """Measure this profile in this process."""
    clients: int = 2
    """Clients that ask each of two proxies."""
    seconds: float = 20
    """Seconds of a measurement in which nothing happens."""
    only: str = ""
    """Regular expression of the names of events that are measured."""


def main(arguments: Arguments) -> None:
    if arguments.here is not None:
        asyncio.run(measure(arguments, arguments.here))
        return
    record = Record("nodes")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    for profile in arguments.profiles:
        options = ["--here", profile, "--clients", str(arguments.clients), "--seconds", str(arguments.seconds)]
        options += ["--only", arguments.only]
        command = [sys.executable, "-m", "jobs.benches.nodes", *options]
        with subprocess.Popen(command, env=os.environ | token, stdout=subprocess.PIPE) as measuring:
            assert measuring.stdout is not None
            for line in measuring.stdout:
                if line.startswith(b"{"):
                    record.row(profile=profile, **json.loads(line))
        if measuring.returncode:
            raise RuntimeError(f"profile {profile} must be measured, got exit status {measuring.returncode}")
    show(last_execution("nodes")[1])


async def measure(arguments: Arguments, profile: str) -> None:
    """All that happens, one after the other, a row each on stdout."""
    count, seconds = arguments.clients, arguments.seconds
    with (
        tempfile.TemporaryDirectory(dir=SHARED) as folder,
        several_nodes(environment=lambda here: ENVIRONMENTS[profile]) as nodes,
    ):
        publish(folder, _encoded)
        made, cluster = ServedOnNodes(nodes, folder, TEXTS, PORT), nodes.nodes
        made.deploy(NUM_SHARDS)
        first = made.at(0)
        async with first.clients(2) as warming:
            await warming.answers(100)

        async def added() -> dict[str, float]:
            items = pa.table({"item_id": [f"new-{number}" for number in range(100)], "input": ["red hat"] * 100})
            async with first.clients(count) as clients:
                await clients.answers(5 * count)
                began = time.monotonic()
                await served(first, await asyncio.to_thread(made.add, items))
                taken_s = time.monotonic() - began
                await asyncio.sleep(seconds / 4)
                return {**clients.outcome(began), "taken_s": taken_s}

        async def back(number: int) -> dict[str, float]:
            async with first.clients(count) as clients:
                began = time.monotonic()
                await asyncio.to_thread(nodes.start, cluster[number])
                back_s = time.monotonic() - began
                await asyncio.sleep(seconds / 4)
                return {**clients.outcome(began), "back_s": back_s}

        async def cut_for_a_moment(number: int) -> dict[str, float]:
            async with first.clients(count) as clients:
                await clients.answers(5 * count)
                began = time.monotonic()
                cluster[number].cut()
                await asyncio.sleep(SHORT_S)
                cluster[number].connect()
                await asyncio.sleep(seconds / 2)
                return clients.outcome(began)

        happening: list[tuple[str, Callable[[], Awaitable[dict[str, float]]]]] = [
            (f"{count} clients", lambda: asked_by(first, count, seconds)),
            ("100 items are added", added),
            ("another version", lambda: swapped(first, VERSIONS[0], count, seconds)),
            ("a node is killed", lambda: made.lost(1, count, cluster[1].kill)),
            ("it comes back", lambda: back(1)),
        ]
        if nodes.is_apart:
            happening += [
                (f"a node is cut off for {SHORT_S:g} s", lambda: cut_for_a_moment(2)),
                ("a node is cut off", lambda: made.lost(2, count, cluster[2].cut)),
            ]
        happening.append(("the head is killed", lambda: headless(made, count, seconds)))
        for what, run in (one for one in happening if re.search(arguments.only, one[0])):
            print(json.dumps({"fault": what, **await run()}), flush=True)


async def headless(made: ServedOnNodes, num_clients: int, seconds: float) -> dict[str, float]:
    """The head is killed while clients ask the proxy of another node; `answered_s`: how long that answers."""
    async with made.at(1).clients(num_clients) as clients:
        await clients.answers(5 * num_clients)
        began = time.monotonic()
        await asyncio.to_thread(made.nodes.nodes[0].kill)
        await asyncio.sleep(6 * seconds)
        answered = [one.at for one in clients.asked if one.status == 200 and one.at >= began]
        return {**clients.outcome(began), "answered_s": max(answered, default=began) - began}


def _encoded(storage: str, run: str) -> encoding.Encoded:
    return encoding.encode(InProcess(), storage, run, EncodeOptions(version=run, num_shards=NUM_SHARDS))


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
