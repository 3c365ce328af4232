"""Swaps: what does a client see of a version that takes over while a server runs, and when does it find new items?

Vectors of --width numbers, drawn at random, served by `serve --single --follow` (or --workers of it) in a process of
its own; --clients ask, wait for the answer and ask again, on the same cores. Each answer is compared with those of the
version that it names.

    python -m jobs.benches.swaps [--items 100000] [--width 64] [--swaps 200] [--clients 16] [--workers 1]

    base        the current version goes to and fro between two that share nothing, --swaps times
    delta       between a version and the same one with a delta of --added items
    freshness   --added items come by POST /v1/items, --rounds times: seconds from the request until a search finds them
    deltas      --deltas deltas of one in a thousand items each, and the compacted version, in process: the time of a
                search, by turns

Wanted: no failed request and no answer of two versions; a p99 during swaps of delta at most twice the quiet p99; the
memory after the last swap at most 1.1 times that before the first; new items found within ten seconds; a search over
the deltas at most 1.3 times one of the compacted version.
"""

import asyncio
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
import psutil
import tyro
from numpy.typing import NDArray

from jobs.benches.record import Record
from rails_ray import local
from rails_ray.families.compacting import compact
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage

PORT, K, NUM_QUERIES = 8351, 10, 32
WARM_S, STARTS_S = 2.0, 120.0
KINDS = ("base", "delta", "freshness", "deltas")


@dataclass(frozen=True)
class Arguments:
    """
    items, width: of a version.
    swaps: of each kind.
    clients: that ask at the same time.
    workers: of the server.
    follow_s: seconds between two of its looks.
    quiet_s: how long clients ask before the first swap.
    added: items of a delta and of a request.
    rounds: of freshness and of deltas.
    deltas: that are beside the base in the last kind.
    kinds: which are measured.
    """

    items: int = 100_000
    width: int = 64
    swaps: int = 200
    clients: int = 16
    workers: int = 1
    follow_s: float = 1.0
    quiet_s: float = 10.0
    added: int = 100
    rounds: int = 5
    deltas: int = 16
    kinds: tuple[str, ...] = KINDS


def main(arguments: Arguments) -> None:
    record = Record("swaps")
    setting = {"items": arguments.items, "width": arguments.width, "workers": arguments.workers}
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            row = MEASURED[kind](arguments, Path(folder))
        record.row(swap=kind, **setting, **row)
        print(kind, row)


def vectors(arguments: Arguments, seed: int, num_items: int | None = None) -> NDArray[np.float32]:
    shape = num_items or arguments.items, arguments.width
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def to_and_fro(arguments: Arguments, folder: Path, names: tuple[str, str]) -> dict[str, Any]:
    """Clients ask while the current version goes to and fro between two."""
    storage = Storage(str(folder))
    queries = vectors(arguments, 3, NUM_QUERIES)
    expected = {
        name: [own.items for own in local.open(str(folder), name).search(queries, k=K).results] for name in names
    }
    versions.rollback(storage, names[0])
    with served(arguments, folder) as (url, headers, server):
        load = Load(url, headers, queries, expected, arguments.clients)
        with load:
            time.sleep(WARM_S + arguments.quiet_s)  # clients ask in other threads, which is what is measured
            quiet, before = load.taken(WARM_S), memory_of(server)
            took, most, began = list[float](), before, time.perf_counter()
            for turn in range(arguments.swaps):
                name, asked = names[(turn + 1) % 2], time.perf_counter()
                versions.rollback(storage, name)
                while not load.is_served(name, arguments.workers, since=asked):
                    time.sleep(0.01)  # no worker announces its switch: only answers show that all have made it
                most = max(most, memory_of(server))
                took.append(time.perf_counter() - asked)
            swapping = load.taken(began - load.began)
        time.sleep(2 * arguments.follow_s)  # the next look at the pointer gives memory back
        after = memory_of(server)
    return {
        "num_swaps": arguments.swaps,
        "requests": len(quiet) + len(swapping),
        "failed": load.num_failed,
        "mixed": load.num_mixed,
        "swap_s": statistics.median(took),
        "quiet_p50_ms": 1e3 * float(np.quantile(quiet, 0.5)),
        "quiet_p99_ms": 1e3 * float(np.quantile(quiet, 0.99)),
        "swaps_p50_ms": 1e3 * float(np.quantile(swapping, 0.5)),
        "swaps_p99_ms": 1e3 * float(np.quantile(swapping, 0.99)),
        "p99_ratio": float(np.quantile(swapping, 0.99) / np.quantile(quiet, 0.99)),
        "memory_before_mb": before,
        "memory_most_mb": most,
        "memory_after_mb": after,
    }


def bases(arguments: Arguments, folder: Path) -> dict[str, Any]:
    for seed, version in enumerate(("v1", "v2")):
        local.build(vectors(arguments, seed), folder=str(folder), version=version)
    return to_and_fro(arguments, folder, ("v1", "v2"))


def with_a_delta(arguments: Arguments, folder: Path) -> dict[str, Any]:
    made = local.build(vectors(arguments, 0), folder=str(folder), version="v1")
    ids = range(arguments.items, arguments.items + arguments.added)
    made.add(vectors(arguments, 4, arguments.added), list(ids))
    return to_and_fro(arguments, folder, ("v1", made.manifest.version))


def freshness(arguments: Arguments, folder: Path) -> dict[str, Any]:
    """Seconds from a request that stores items until a search finds one of them."""
    local.build(vectors(arguments, 0), folder=str(folder), version="v1")
    stored, found = list[float](), list[float]()
    with (
        served(arguments, folder) as (url, headers, _),
        httpx.Client(base_url=url, headers=headers, timeout=60) as http,
    ):
        for turn in range(arguments.rounds):
            rows = vectors(arguments, 10 + turn, arguments.added).tolist()
            first = arguments.items + turn * arguments.added
            items = [{"id": first + number, "embedding": row} for number, row in enumerate(rows)]
            began = time.perf_counter()
            http.post("/v1/items", json={"items": items}).raise_for_status()
            stored.append(time.perf_counter() - began)
            search = {"queries": [{"embedding": rows[0]}], "k": 1}
            while http.post("/v1/search", json=search).json()["results"][0]["items"] != [first]:
                time.sleep(0.02)  # the pause limits how exactly the time until it is found is known
            found.append(time.perf_counter() - began)
    return {"added": arguments.added, "follow_s": arguments.follow_s, "stored_s": stored, "found_s": found}


def over_deltas(arguments: Arguments, folder: Path) -> dict[str, Any]:
    """The time of a search over deltas beside one of the same items in one base, by turns."""
    made = local.build(vectors(arguments, 0), folder=str(folder), version="v1")
    each = max(arguments.items // 1000, 1)
    for number in range(arguments.deltas):
        first = arguments.items + number * each
        made.add(vectors(arguments, 20 + number, each), list(range(first, first + each)))
    compact(Storage(str(folder)))
    opened = {"deltas": made, "compacted": local.open(str(folder))}
    queries, took = vectors(arguments, 3, NUM_QUERIES), {name: list[float]() for name in opened}
    lists = {
        name: [own.items for own in own_version.search(queries, k=K).results] for name, own_version in opened.items()
    }
    for _ in range(arguments.rounds):
        for query in queries:
            for name, version in opened.items():
                began = time.perf_counter()
                version.search(query[None], k=K)
                took[name].append(time.perf_counter() - began)
    medians = {f"{name}_ms": 1e3 * statistics.median(own) for name, own in took.items()}
    return {
        "num_deltas": arguments.deltas,
        "num_in_deltas": arguments.deltas * each,
        **medians,
        "ratio": medians["deltas_ms"] / medians["compacted_ms"],
        "are_equal": lists["deltas"] == lists["compacted"],
    }


MEASURED = {"base": bases, "delta": with_a_delta, "freshness": freshness, "deltas": over_deltas}


@contextmanager
def served(arguments: Arguments, folder: Path) -> Iterator[tuple[str, dict[str, str], psutil.Process]]:
    """The URL of a server that follows, the headers of who may change items, and its process."""
    key, keys = secrets.token_hex(16), folder / "keys"
    keys.write_text(f"{key}\n")
    options = [
        "--storage",
        str(folder),
        "--keys-file",
        str(keys),
        "--port",
        str(PORT),
        "--workers",
        str(arguments.workers),
    ]
    command = [sys.executable, "-m", "rails_ray.cli", "serve", "--single", "--follow", "--change-items", *options]
    server = subprocess.Popen([*command, "--follow-s", str(arguments.follow_s)], stdout=subprocess.DEVNULL)
    url, headers = f"http://127.0.0.1:{PORT}", {"authorization": f"Bearer {key}"}
    try:
        ends = time.monotonic() + STARTS_S
        while time.monotonic() < ends and server.poll() is None:
            try:
                httpx.get(f"{url}/v1/health/ready").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.2)  # it starts in another process, which says nothing when it listens
        yield url, headers, psutil.Process(server.pid)
    finally:
        server.terminate()
        server.wait(60)


def memory_of(server: psutil.Process) -> float:
    """Megabytes of a server and its workers; what they share counts once."""
    return sum(process.memory_full_info().pss for process in (server, *server.children(recursive=True))) / 1e6


class Load:
    """Clients that ask while the block lasts, in a thread with an event loop of its own.

    num_failed, num_mixed: requests that failed, and answers that are none of the version that they name.
    """

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        queries: NDArray[np.float32],
        expected: dict[str, list[list[Any]]],
        num_clients: int,
    ) -> None:
        self._url, self._headers, self._expected, self._num = url, headers, expected, num_clients
        self._bodies = [json.dumps({"queries": [{"embedding": own.tolist()}], "k": K}).encode() for own in queries]
        self._done = list[tuple[float, float, str]]()  # began, took, version
        self._is_over = False
        self.num_failed = self.num_mixed = 0
        self.began = 0.0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> "Load":
        self.began = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def taken(self, since_s: float) -> list[float]:
        """Seconds that each request took that began so many seconds after the first, or later."""
        return [took for began, took, _ in list(self._done) if began - self.began >= since_s]

    def is_served(self, name: str, num_workers: int, since: float) -> bool:
        """Decide whether all answer from a version: the last answers, several of each worker, do."""
        last = self._done[-8 * num_workers :]
        return all(version == name and began > since for began, _, version in last)

    async def _all(self) -> None:
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            await asyncio.gather(*(self._ask(session, number) for number in range(self._num)))

    async def _ask(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self._is_over:
            number = (number + 1) % len(self._bodies)
            began = time.perf_counter()
            try:
                async with session.post(f"{self._url}/v1/search", data=self._bodies[number]) as response:
                    answer = await response.json()
                    status = response.status
            except aiohttp.ClientError:
                status, answer = 0, {}
            took = time.perf_counter() - began
            if status != 200:
                self.num_failed += 1
                continue
            version = answer["version"]
            self.num_mixed += answer["results"][0]["items"] != self._expected[version][number]
            self._done.append((began, took, version))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
