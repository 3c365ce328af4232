"""HTTP: how much longer does a search take than doing nothing in the same places?

One client asks, in turns, for a search over the 3,963 emoji in 2 shards (a Mixture of Logits with random weights:
router: encode -> 2 shards -> merge, cut) and for a fan-out of a FastAPI ingress to 2 deployments that do
nothing. Both run on the same Ray Serve at the same time, once in each profile.

    python -m jobs.benches.http [--requests 400] [--storage STORAGE --text TEXT] [--shards-apart]

Beside them: where the time of a search goes, by stage (median, as its `Server-Timing` says) and by process (CPU).

Shards are where `rails-ray serve` puts them: in the router, if the version is small. With `--storage` the search is
that of its current version, whatever that is.

A yes is a median of the search at most 1.5 times that of the fan-out, in both profiles.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import tyro
from fastapi import FastAPI
from ray import serve as ray_serve
from ray.serve.handle import DeploymentHandle

from jobs.benches.chaos_clients import own_processes
from jobs.benches.record import Record
from rails_ray import on_ray
from rails_ray.families.config import to_json
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes.emoji import emoji_mol
from rails_ray.families.version import Version
from rails_ray.modules import weight_files
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.environment import ENVIRONMENT, PRODUCTION_ENVIRONMENT
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs, fits_routers
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.usage import size_of

PORT = 8321
TURN = 25  # requests of one kind before it is the other's turn
ENVIRONMENTS = {"local": ENVIRONMENT, "production": PRODUCTION_ENVIRONMENT}

ROLES = {  # by the titles of their processes
    "proxy": "ray::ProxyActor",
    "HAProxy": "bin/haproxy",
    "router": "ServeReplica:rails-ray:Router",
    "shards": "ServeReplica:rails-ray:Shard",
}

api = FastAPI()


@ray_serve.deployment
class Nothing:
    async def nothing(self, value: str) -> str:
        return value


@ray_serve.deployment
@ray_serve.ingress(api)
class FanOut:
    def __init__(self, parts: list[DeploymentHandle[Any]]) -> None:
        self.parts = parts

    @api.post("/")
    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"found": await asyncio.gather(*(part.nothing.remote("pizza") for part in self.parts))}


@dataclass(frozen=True)
class Arguments:
    requests: int = 400
    """Of each kind."""
    profile: str | None = None
    """Measure this one in this process; by default both, each in a process of its own."""
    storage: str | None = None
    """Whose current version is asked; by default the emoji's."""
    text: str = "pizza"
    """What is asked for."""
    method: str = "brute_force"
    """How it is searched for."""
    shards_apart: bool = False
    """Shards have replicas of their own; by default they are where `rails-ray serve` puts them."""
    profiles: tuple[str, ...] = tuple(ENVIRONMENTS)
    """The profiles to measure."""
    label: str = ""
    """A name for the rows of this run, such as the commit."""

    @property
    def body(self) -> dict[str, Any]:
        """Of a request."""
        return {"queries": [{"text": self.text}], "k": 10, "cutoff": {"top_k": 10}, "method": self.method}


def main(arguments: Arguments) -> None:
    if arguments.profile is not None:
        print(json.dumps(measure(arguments)))
        return
    record = Record("http")
    for profile, row in in_each_profile("jobs.benches.http", arguments.profiles):
        own = {"method": arguments.method, "label": arguments.label}
        record.row(profile=profile, **own, **row)
        print(
            f"{profile}: search {row['search']['p50_ms']:.1f} ms, fan-out {row['fan_out']['p50_ms']:.1f} ms, "
            f"ratio {row['ratio_p50']:.2f}"
        )


def in_each_profile(module: str, profiles: Sequence[str] = tuple(ENVIRONMENTS)) -> Iterator[tuple[str, Any]]:
    """What a bench measures in a process of its own for each profile, as the JSON of its last line."""
    for profile in profiles:
        environment = ENVIRONMENTS[profile]
        command = [sys.executable, "-m", module, *sys.argv[1:], "--profile", profile]
        done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, check=True)
        yield profile, json.loads(done.stdout.splitlines()[-1])


def measure(arguments: Arguments) -> dict[str, Any]:
    """Medians and 95th percentiles of both, and the ratio of the medians."""
    with tempfile.TemporaryDirectory() as folder, cluster(8):
        if arguments.storage is None:
            publish(folder)
        storage = arguments.storage or folder
        are_in_routers = not arguments.shards_apart and routers_hold(storage)
        of_current = ServeArgs(storage=storage, allow_anonymous=True, shards_in_routers=are_in_routers)
        with served(of_current, port=PORT, leave_serve=True) as url:
            parts = [Nothing.options(name=f"Nothing{number}").bind() for number in range(2)]
            ray_serve.run(FanOut.bind(parts), name="fan-out", route_prefix="/fan-out")
            times: dict[str, list[float]] = {"/v1/search": [], "/fan-out/": []}
            cpu_ms, stages = defaultdict[str, float](float), defaultdict[str, list[float]](list)
            with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
                for path in times:
                    ask(client, path, arguments.body, 4 * TURN)  # the first ones compile, connect and load
                roles = processes()
                for _ in range(arguments.requests // TURN):
                    before = cpu_seconds(roles)
                    times["/v1/search"] += ask(client, "/v1/search", arguments.body, TURN, stages)
                    for name, taken in cpu_seconds(roles).items():
                        cpu_ms[name] += 1e3 * (taken - before[name])
                    times["/fan-out/"] += ask(client, "/fan-out/", arguments.body, TURN)
    search, fan_out = (summary(seconds) for seconds in times.values())
    return {
        "shards_in_routers": are_in_routers,
        "search": search,
        "fan_out": fan_out,
        "ratio_p50": search["p50_ms"] / fan_out["p50_ms"],
        "stages_ms": {name: statistics.median(took) for name, took in stages.items()},
        "cpu_ms": {name: total / search["requests"] for name, total in cpu_ms.items()},
    }


def routers_hold(storage: str) -> bool:
    """Decide as `rails-ray serve` does by default if routers hold the shards of the current version."""
    version = Version.published(Storage(storage))
    return fits_routers(size_of(version.described), DeploymentSize(), None)


def processes() -> dict[str, list[psutil.Process]]:
    """Of this process's cluster, by what they do."""
    found = {name: own_processes(title) for name, title in ROLES.items()}
    return {name: own for name, own in found.items() if own} | {"client": [psutil.Process()]}


def cpu_seconds(roles: dict[str, list[psutil.Process]]) -> dict[str, float]:
    taken = {name: [own.cpu_times() for own in processes] for name, processes in roles.items()}
    return {name: sum(own.user + own.system for own in times) for name, times in taken.items()}


def ask(
    client: httpx.Client, path: str, body: dict[str, Any], count: int, stages: dict[str, list[float]] | None = None
) -> list[float]:
    """Seconds of each of `count` requests, one after the other.

    Args:
        stages: where the milliseconds of each stage go.
    """
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        answer = client.post(path, json=body).raise_for_status()
        seconds.append(time.perf_counter() - started)
        for told in () if stages is None else answer.headers["server-timing"].split(", "):
            name, _, took = told.partition(";dur=")
            stages[name].append(float(took))
    return seconds


def summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50_ms": 1e3 * statistics.median(ordered),
        "p95_ms": 1e3 * ordered[int(0.95 * len(ordered))],
        "p99_ms": 1e3 * ordered[int(0.99 * len(ordered))],
        "requests": len(ordered),
    }


def publish(storage: str) -> None:
    """The emoji under a model with random weights, in 2 shards."""
    config = emoji_mol()
    runs.write(
        Storage(storage),
        "random",
        weights=weight_files.to_bytes(DualEncoderTraining.of(config).model()),
        validation=json.dumps({"cutoff_mass": 0.99}).encode(),
        training={"seconds": 0, "losses": []},
        config=to_json(config),
    )
    on_ray.publish(storage, on_ray.encode(storage, "random", num_shards=2).version)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
