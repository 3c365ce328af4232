"""Overload: what does a server give while five times as many requests come as it can answer, and is it well afterwards?

The 3,963 emoji in 2 shards, a Mixture of Logits with random weights; server and clients share two cores. A request has
32 queries, so that sending five times the capacity takes few of the cores. Capacity is what 32 clients get who ask,
wait and ask again. Requests then come evenly at a multiple of it, whether or not others were answered.

    python -m jobs.benches.overload [--seconds 15] [--times 5]              both profiles
    python -m jobs.benches.overload --seconds 600 --times 0.8               a soak

Wanted, at five times the capacity: goodput of at least .9 of it, the others refused with 429 within 50 ms, a usual
answer within 3 s after it ends, memory flat. At .8 of the capacity for ten minutes: no error, and memory that grows by
less than 2% after the first two minutes.

`stalls` tells of the seconds in which a request was not answered or took more than STALLED times the usual time: how
many, the slowest, how late the clients themselves woke, and the cores that the server's processes, the whole machine
and its host's other guests (steal) used. So one sees who stood still.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil
import tyro

from jobs.benches.chaos_clients import own_processes
from jobs.benches.http import PORT, in_each_profile, publish
from jobs.benches.record import Record
from jobs.benches.throughput import WARM_S, body_of, loaded
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import NAME, ServeArgs

QUERIES = 32
CAPACITY_S = 10.0
SAMPLE_S = 1.0  # between two looks at the memory
WARM_SHARE = 0.2  # of the time, before memory counts as warm
RECOVERED = 2.0  # times the answer of an idle server, which is usual again
PATIENCE_S = 30.0  # for a server to be well again
STALLED = 20.0  # times the answer of an idle server
MOST_STALLS = 30  # rows that are kept, of the worst seconds


@dataclass
class Second:
    """What clients saw of the requests of one second, and `cores`, those that were used meanwhile."""

    num_refused: int = 0
    slowest_s: float = 0.0
    woke_late_s: float = 0.0
    cores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Arguments:
    """
    seconds: how long requests come.
    times: how many times the capacity comes.
    profile: measure this one in this process; by default both, each in a process of its own.
    """

    seconds: float = 15.0
    times: float = 5.0
    profile: str | None = None


def main(arguments: Arguments) -> None:
    if arguments.profile is not None:
        print(json.dumps(measure(arguments)))
        return
    record = Record("overload")
    for profile, row in in_each_profile("jobs.benches.overload"):
        record.row(profile=profile, times=arguments.times, seconds=arguments.seconds, **row)
        print(profile, row)


def measure(arguments: Arguments) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, cluster(8):
        publish(folder)
        with served(ServeArgs(storage=folder, allow_anonymous=True), port=PORT, leave_serve=True) as url:
            asyncio.run(loaded(url, 32, QUERIES, WARM_S))
            before = asyncio.run(loaded(url, 32, QUERIES, CAPACITY_S))
            capacity = before["queries_per_s"] / QUERIES
            idle = asyncio.run(loaded(url, 1, QUERIES, WARM_S))
            usual_s = idle["p50_ms"] / 1000
            titles = (f"ServeReplica:{NAME}:Router", f"ServeReplica:{NAME}:Shard", "ProxyActor")
            replicas = [process for title in titles for process in own_processes(title)]
            found = asyncio.run(overloaded(url, capacity * arguments.times, arguments.seconds, usual_s, replicas))
            after = asyncio.run(loaded(url, 32, QUERIES, CAPACITY_S))
    goodput = found.pop("answered") / arguments.seconds
    return {
        "capacity": capacity,
        "capacity_after": after["queries_per_s"] / QUERIES,
        "goodput": goodput,
        "goodput_share": goodput / (capacity * min(arguments.times, 1)),
        "idle_ms": 1000 * usual_s,
        **found,
    }


async def overloaded(
    url: str, per_s: float, seconds: float, usual_s: float, replicas: list[psutil.Process]
) -> dict[str, Any]:
    """What comes back of requests that come evenly, how soon an answer is usual again, and how memory changes."""
    took: dict[int, list[float]] = {}
    late, memory = list[float](), list[float]()
    seen: dict[int, Second] = defaultdict(Second)
    bodies = [json.dumps(body_of(number, QUERIES)).encode() for number in range(8)]
    own_process = psutil.Process()

    async def ask(session: aiohttp.ClientSession, number: int) -> tuple[int, float]:
        started = time.perf_counter()
        try:
            async with session.post(f"{url}/v1/search", data=bodies[number % len(bodies)]) as response:
                await response.read()
                status = response.status
        except aiohttp.ClientError:
            status = 0
        return status, time.perf_counter() - started

    async def note(session: aiohttp.ClientSession, number: int, second: Second) -> None:
        status, own = await ask(session, number)
        took.setdefault(status, []).append(own)
        second.num_refused += status != 200
        second.slowest_s = max(second.slowest_s, own)

    async def look() -> None:
        used = cpu_seconds(replicas)
        while True:
            second = seen[int((time.perf_counter() - started) / SAMPLE_S)]
            memory.append(sum(process.memory_info().rss for process in replicas) / 1e6)
            began = time.perf_counter()
            await asyncio.sleep(SAMPLE_S)
            took_s, before, used = time.perf_counter() - began, used, cpu_seconds(replicas)
            second.cores = {name: round((used[name] - before[name]) / took_s, 2) for name in used}

    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        started, number, coming = time.perf_counter(), 0, set[asyncio.Task[None]]()
        looking = asyncio.create_task(look())
        used = sum(own_process.cpu_times()[:2])
        while (now := time.perf_counter() - started) < seconds:
            if number < now * per_s:
                late.append(now - number / per_s)
                second = seen[int(now / SAMPLE_S)]
                second.woke_late_s = max(second.woke_late_s, late[-1])
                task = asyncio.create_task(note(session, number, second))
                coming.add(task)
                task.add_done_callback(coming.discard)
                number += 1
            else:
                await asyncio.sleep(number / per_s - now)
        answered = len(took.get(200, []))  # in that time
        used, ended = sum(own_process.cpu_times()[:2]) - used, time.perf_counter()
        recovered_s = None
        while recovered_s is None and time.perf_counter() - ended < PATIENCE_S:
            status, own = await ask(session, 0)
            if status == 200 and own < RECOVERED * usual_s:
                recovered_s = time.perf_counter() - ended
        await asyncio.gather(*coming)
        looking.cancel()
    warm = max(1, int(WARM_SHARE * len(memory)))
    return {
        "offered": number,
        "client_cores": used / seconds,
        "sent_late_ms": 1000 * statistics.median(late),
        "answered": answered,
        "statuses": dict(Counter({str(status): len(own) for status, own in took.items()})),
        "answered_ms": quantiles(took.get(200, [])),
        "refused_ms": quantiles(took.get(429, [])),
        "recovered_s": recovered_s,
        "stalls": worst(seen, STALLED * usual_s),
        "memory_mb": {"begin": memory[0], "warm": memory[warm], "end": memory[-1], "most": max(memory)},
        "memory_growth": memory[-1] / memory[warm] - 1,
    }


def cpu_seconds(replicas: list[psutil.Process]) -> dict[str, float]:
    """That the server's processes, all processes of the machine, and other guests of its host have used so far."""
    machine = psutil.cpu_times()
    return {
        "server": sum(sum(process.cpu_times()[:2]) for process in replicas),
        "machine": machine.user + machine.nice + machine.system,
        "steal": machine.steal,
    }


def worst(seen: dict[int, Second], slow_s: float) -> list[dict[str, Any]]:
    """The seconds with a refusal or an answer slower than that, in order of time; MOST_STALLS of them."""
    bad = [at for at, second in seen.items() if second.num_refused or second.slowest_s > slow_s]
    kept = sorted(bad, key=lambda at: (-seen[at].num_refused, -seen[at].slowest_s))[:MOST_STALLS]
    return [
        {
            "second": at * SAMPLE_S,
            "refused": seen[at].num_refused,
            "slowest_ms": round(1000 * seen[at].slowest_s),
            "woke_late_ms": round(1000 * seen[at].woke_late_s),
            "cores": seen[at].cores,
        }
        for at in sorted(kept)
    ]


def quantiles(seconds: list[float]) -> dict[str, float] | None:
    """Milliseconds; None for none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return {f"p{share}": 1000 * ordered[min(len(ordered) * share // 100, len(ordered) - 1)] for share in (50, 95, 99)}


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
