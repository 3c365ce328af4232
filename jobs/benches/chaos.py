"""Chaos: what do clients see while parts of a server die, versions are swapped, too many ask, or some send slowly?

Two versions of the emoji (Mixtures of Logits with different random weights) in 2 shards, two replicas of each
deployment. Clients ask one after the other, and each answer is compared with that of the version which it names, found
offline; a client that is refused with 429 or 503 comes again when it is told to. In the table: how many requests came,
were not answered with 200 (those refused with a sentence and Retry-After apart), and were answered wrongly; the seconds
from the fault to the last failure; the median and 99th percentile of answers, and answers a second.

    python -m jobs.benches.chaos [--profiles local production] [--clients 4] [--seconds 20]

A yes is no wrong answer anywhere; no failure, but those in flight, where a replica dies; goodput under 200 clients of
at least .8 of that under 8, with a p99 below 10 s; and others answered at once beside slow senders.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from ray import serve as ray_serve
from rich.console import Console
from rich.table import Table

from jobs.benches.chaos_clients import COLUMNS, K, Server, offline, own_processes
from jobs.benches.chaos_faults import (
    asked_by,
    beside_leavers,
    beside_liars,
    beside_slow_senders,
    greedy,
    killed,
    slow_body,
    slow_headers,
    stopped,
    swapped,
    without_storage,
)
from jobs.benches.record import Record, last_execution
from rails_ray import on_ray
from rails_ray.data import emoji
from rails_ray.families.config import to_json
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes.emoji import emoji_mol
from rails_ray.modules import weight_files
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.environment import ENVIRONMENT, PRODUCTION_ENVIRONMENT
from rails_ray.on_ray.serving.app import application, served
from rails_ray.on_ray.serving.plan import NAME, DeploymentSize, ServeArgs
from rails_ray.storage import runs
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage

PORT = 8322
ENVIRONMENTS = {"local": ENVIRONMENT, "production": PRODUCTION_ENVIRONMENT}
VERSIONS = ("red", "blue")
FEW_CLIENTS, MANY_CLIENTS, SLOW_SENDERS = 8, 200, 230
TEXTS = tuple(emoji.SHOWCASE[:6])


def publish(storage: str, encode: Callable[[str, str], Encoded]) -> None:
    """The emoji under two models with random weights, as two versions.

    Args:
        encode: encodes a run of the storage as a version of the same name.
    """
    for seed, version in enumerate(VERSIONS):
        config = replace(emoji_mol(), seed=seed)
        runs.write(
            Storage(storage),
            version,
            weights=weight_files.to_bytes(DualEncoderTraining.of(config).model()),
            validation=json.dumps({"cutoff_mass": 0.99}).encode(),
            training={"seconds": 0, "losses": []},
            config=to_json(config),
        )
        on_ray.publish(storage, encode(storage, version).version)


@dataclass(frozen=True)
class Arguments:
    profiles: tuple[str, ...] = tuple(ENVIRONMENTS)
    """Of the server; each in a process of its own."""
    here: str | None = None
    """Measure this profile in this process."""
    clients: int = 4
    """That ask while something dies or is swapped."""
    seconds: float = 20
    """Of each fault."""
    only: str = ""
    """Faults whose name holds what this regular expression matches."""


def main(arguments: Arguments) -> None:
    if arguments.here is not None:
        asyncio.run(measure(arguments))
        return
    record = Record("chaos")
    for profile in arguments.profiles:
        options = ["--here", profile, "--clients", str(arguments.clients), "--seconds", str(arguments.seconds)]
        options += ["--only", arguments.only]
        done = subprocess.run(
            [sys.executable, "-m", "jobs.benches.chaos", *options],
            env=os.environ | ENVIRONMENTS[profile],
            stdout=subprocess.PIPE,
            check=True,
        )
        for line in done.stdout.splitlines():
            if line.startswith(b"{"):
                record.row(profile=profile, **json.loads(line))
    show(last_execution("chaos")[1])


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table("profile", "fault", *COLUMNS, "also")
    for row in rows:
        also = {key: value for key, value in row.items() if key not in (*COLUMNS, "profile", "fault", "execution")}
        cells = [f"{row[name]:.3g}" if name in row else "" for name in COLUMNS]
        table.add_row(row["profile"], row["fault"], *cells, ", ".join(f"{k} {v:.3g}" for k, v in also.items()))
    Console(width=180).print(table)


async def measure(arguments: Arguments) -> None:
    """All faults, one after the other, a row each on stdout."""
    count, seconds = arguments.clients, arguments.seconds
    placement = DeploymentSize(replicas=2)
    with tempfile.TemporaryDirectory() as folder, cluster(8):
        publish(folder, lambda storage, run: on_ray.encode(storage, run, version=run, num_shards=2))
        expected = offline(folder, VERSIONS, TEXTS, K)
        assert all(one != other for one, other in zip(*expected.values(), strict=True))

        def swap(version: str) -> None:
            made = application(ServeArgs(storage=folder, version=version, allow_anonymous=True), placement)
            ray_serve.run_many(
                [ray_serve.RunTarget(target=made, name=NAME, route_prefix="/")], wait_for_applications_running=False
            )

        of_first = ServeArgs(storage=folder, version=VERSIONS[0], allow_anonymous=True)
        with served(of_first, placement, port=PORT, leave_serve=True) as url:
            server = Server(url, TEXTS, expected, swap, own_processes)
            async with server.clients(2) as warming:
                await warming.answers(100)
            headers, body = slow_headers({}), slow_body({})
            faults: list[tuple[str, Callable[[], Awaitable[dict[str, float]]]]] = [
                (f"{FEW_CLIENTS} clients", lambda: asked_by(server, FEW_CLIENTS, seconds)),
                (f"{MANY_CLIENTS} clients", lambda: asked_by(server, MANY_CLIENTS, 2 * seconds)),
                ("slow bodies", lambda: beside_slow_senders(server, body, SLOW_SENDERS, count, 2 * seconds)),
                ("slow headers", lambda: beside_slow_senders(server, headers, SLOW_SENDERS, count, seconds)),
                ("1024 x 3963 items", lambda: greedy(server, 1024, 3963)),
                ("25 x 3963 items", lambda: greedy(server, 25, 3963)),
                ("swap", lambda: swapped(server, VERSIONS[1], count, seconds)),
                ("swap back", lambda: swapped(server, VERSIONS[0], count, seconds)),
                ("a shard's replica stands still", lambda: stopped(server, "Shard001", 1, count, seconds)),
                ("a shard's replica is slow", lambda: stopped(server, "Shard001", 1, count, seconds, turns=40)),
                ("a shard stands still", lambda: stopped(server, "Shard001", 2, count, seconds)),
                ("storage is away", lambda: without_storage(server, Path(folder), count, seconds)),
                ("clients go away", lambda: beside_leavers(server, count, count, seconds)),
                ("lengths are wrong", lambda: beside_liars(server, count, count, seconds)),
                ("kill a shard", lambda: killed(server, "Shard001", count, seconds)),
                ("kill a router", lambda: killed(server, ":Router", count, seconds)),
                ("kill the controller", lambda: killed(server, "ServeController", count, seconds)),
            ]
            proxy = "HAProxyManager" if "RAY_SERVE_ENABLE_HA_PROXY" in os.environ else "ProxyActor"
            faults.append(("kill the proxy", lambda: killed(server, proxy, count, seconds)))
            for fault, run in (one for one in faults if re.search(arguments.only, one[0])):
                print(json.dumps({"fault": fault, **await run()}), flush=True)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
