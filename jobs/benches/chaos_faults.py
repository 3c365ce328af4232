"""What `chaos` does to a server while clients ask it, and what comes of their requests."""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import numpy as np
import psutil
import torch

from rails_ray.build.version import version_family, version_items, version_model
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from rails_ray.wanted import Wanted

K = 5
LEAVE_S = 0.02  # before a client goes away, and between two turns
COLUMNS = ("requests", "failed", "refused", "wrong", "recover_s", "p50_s", "p99_s", "per_s")

Answers = dict[str, list[tuple[list[str | int], list[float]]]]  # of each version, items and scores for each text


@dataclass(frozen=True)
class Request:
    """
    at, seconds: when a request ended, by `time.monotonic`, and how long it took.
    status: of HTTP; 0 where the connection broke.
    is_refused: whether it was told in a sentence when to come again.
    is_wrong: whether its answer is not that of the version which it names.
    """

    at: float
    seconds: float
    status: int
    is_refused: bool
    is_wrong: bool


@dataclass
class Clients:
    """Clients that ask one after the other while the block lasts.

    expected: the answer of each version to each of `texts`.
    headers: of each request.
    patience_s: after which a client gives up on an answer.
    """

    url: str
    num_clients: int
    texts: Sequence[str]
    expected: Answers
    headers: dict[str, str] = field(default_factory=dict)
    patience_s: float = 60
    asked: list[Request] = field(default_factory=list)
    wrong: list[Any] = field(default_factory=list)

    async def __aenter__(self) -> "Clients":
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=self.patience_s)
        self._session = aiohttp.ClientSession(connector=connector, headers=self.headers, timeout=timeout)
        self._tasks = [asyncio.create_task(self._ask_on(number)) for number in range(self.num_clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        for failure in ended:
            if not isinstance(failure, asyncio.CancelledError):
                raise RuntimeError("a client must ask until it is stopped") from failure

    async def _ask_on(self, number: int) -> NoReturn:
        while True:
            number = (number + 1) % len(self.texts)
            await asyncio.sleep(await self._ask(number))

    async def _ask(self, number: int) -> float:
        """Ask once; the seconds after which to come again."""
        began, status, is_refused, is_wrong, pause_s = time.monotonic(), 0, False, False, 0.0
        body = {"queries": [{"text": self.texts[number]}], "k": K, "cutoff": {"top_k": K}}
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.post(f"{self.url}/v1/search", json=body) as response:
                content = await response.read()
                status = response.status
                if status == 200:
                    is_wrong = not self._is_right(number, content)
                    if is_wrong:
                        self.wrong.append(content)
                elif status in (429, 503) and "retry-after" in response.headers:
                    pause_s = float(response.headers["retry-after"])
                    is_refused = b'{"error":' in content
        if status != 200 and not pause_s:
            pause_s = 0.1  # a client that is cut off does not ask again in the same moment
        now = time.monotonic()
        self.asked.append(Request(now, now - began, status, is_refused, is_wrong))
        return pause_s

    def _is_right(self, number: int, content: bytes) -> bool:
        """Whether an answer is that of the version which it names."""
        try:
            answer = json.loads(content)
            items, scores = self.expected[answer["version"]][number]
            (result,) = answer["results"]
            return result["items"] == items and bool(np.allclose(result["scores"], scores, rtol=0, atol=1e-5))
        except (ValueError, KeyError):
            return False

    async def answers(self, count: int, timeout_s: float = 90) -> None:
        """Wait for so many answers with 200.

        Raises:
            TimeoutError: if they do not come in time.
        """
        before = self.num_answered
        async with asyncio.timeout(timeout_s):
            while self.num_answered < before + count:
                await asyncio.sleep(0.02)

    @property
    def num_answered(self) -> int:
        return sum(one.status == 200 for one in self.asked)

    def outcome(self, since: float) -> dict[str, float]:
        """What came of the requests that ended since then, by `COLUMNS`."""
        own = [one for one in self.asked if one.at >= since]
        failures = [one.at for one in own if one.status != 200]
        seconds = sorted(one.seconds for one in own if one.status == 200)
        p50, p99 = np.quantile(seconds, [0.5, 0.99]) if seconds else (np.inf, np.inf)
        return {
            "requests": len(own),
            "failed": sum(one.status != 200 and not one.is_refused for one in own),
            "refused": sum(one.is_refused for one in own),
            "wrong": sum(one.is_wrong for one in own),
            "recover_s": max(failures, default=since) - since,
            "p50_s": float(p50),
            "p99_s": float(p99),
            "per_s": len(seconds) / (max(one.at for one in own) - since) if own else 0.0,
        }


@dataclass(frozen=True)
class Server:
    """
    texts: what clients ask.
    swap: makes the server serve a version, and returns once that was asked of it.
    replicas: of a deployment, or what else runs under such a title.
    """

    url: str
    texts: Sequence[str]
    expected: Answers
    swap: Callable[[str], None]
    replicas: Callable[[str], list[psutil.Process]]
    headers: dict[str, str] = field(default_factory=dict)

    def clients(self, num_clients: int) -> Clients:
        return Clients(self.url, num_clients, self.texts, self.expected, self.headers)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


async def swapped(server: Server, version: str, num_clients: int, seconds: float) -> dict[str, float]:
    """Under load another version is deployed, until only that one answers."""
    async with server.clients(num_clients) as clients:
        await clients.answers(5 * num_clients)
        began = time.monotonic()
        await asyncio.to_thread(server.swap, version)
        async with asyncio.timeout(seconds + 120):
            while await _versions(server, 20) != {version}:
                await asyncio.sleep(0.2)
        await asyncio.sleep(seconds / 4)
        return clients.outcome(began)


async def killed(server: Server, title: str, num_clients: int, seconds: float) -> dict[str, float]:
    """Under load a process is killed."""
    async with server.clients(num_clients) as clients:
        await clients.answers(5 * num_clients)
        victims = server.replicas(title)
        began = time.monotonic()
        victims[0].send_signal(signal.SIGKILL)
        await asyncio.sleep(seconds)
        await clients.answers(10 * num_clients)
        return clients.outcome(began)


async def stopped(
    server: Server, title: str, most: int, num_clients: int, seconds: float, turns: int = 1
) -> dict[str, float]:
    """Under load so many of the processes of a deployment stand still for a while, in turns, and go on."""
    async with server.clients(num_clients) as clients:
        await clients.answers(5 * num_clients)
        victims = server.replicas(title)[:most]
        began = time.monotonic()
        for _ in range(turns):
            for victim in victims:
                victim.suspend()
            await asyncio.sleep(seconds / 2 / turns)
            for victim in victims:
                with suppress(psutil.NoSuchProcess):  # Serve has replaced it
                    victim.resume()
            await asyncio.sleep(LEAVE_S)
        await asyncio.sleep(seconds / 2)
        await clients.answers(10 * num_clients)
        return clients.outcome(began)


async def without_storage(server: Server, folder: Path, num_clients: int, seconds: float) -> dict[str, float]:
    """Under load the storage is away for a while."""
    async with server.clients(num_clients) as clients:
        await clients.answers(5 * num_clients)
        began = time.monotonic()
        away = folder.rename(folder.with_name(f"{folder.name}-away"))
        try:
            await asyncio.sleep(seconds / 2)
        finally:
            away.rename(folder)
        await asyncio.sleep(seconds / 2)
        return clients.outcome(began)


async def beside_leavers(server: Server, num_leavers: int, num_clients: int, seconds: float) -> dict[str, float]:
    """Clients beside others that go away before they have their answers."""
    body = {"queries": [{"text": server.texts[0]}] * 32, "k": K, "cutoff": {"top_k": K}}
    left = 0

    async def leave(session: aiohttp.ClientSession) -> NoReturn:
        nonlocal left
        while True:
            with suppress(TimeoutError, aiohttp.ClientError):
                async with asyncio.timeout(LEAVE_S), session.post(f"{server.url}/v1/search", json=body) as response:
                    await response.read()
            left += 1

    async with aiohttp.ClientSession(headers=server.headers) as session, server.clients(num_clients) as clients:
        leavers = [asyncio.create_task(leave(session)) for _ in range(num_leavers)]
        began = time.monotonic()
        await asyncio.sleep(seconds)
        for leaver in leavers:
            leaver.cancel()
        await asyncio.gather(*leavers, return_exceptions=True)
        return {**clients.outcome(began), "left": left}


async def beside_liars(server: Server, num_liars: int, num_clients: int, seconds: float) -> dict[str, float]:
    """Clients beside requests whose content-length is larger or smaller than their body, which is all that they
    send."""
    body = json.dumps({"queries": [{"text": server.texts[0]}], "k": K}).encode()
    lied = 0

    async def lie(difference: int) -> NoReturn:
        nonlocal lied
        head = b"POST /v1/search HTTP/1.1\r\nhost: x\r\n" + _lines(server.headers)
        while True:
            with suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(head + f"content-length: {len(body) + difference}\r\n\r\n".encode() + body)
                writer.write_eof()
                async with asyncio.timeout(2):
                    await reader.read()
                writer.close()
            lied += 1
            await asyncio.sleep(LEAVE_S)  # or they would be a flood

    async with server.clients(num_clients) as clients:
        liars = [asyncio.create_task(lie(-7 if number % 2 else 7)) for number in range(num_liars)]
        began = time.monotonic()
        await asyncio.sleep(seconds)
        for liar in liars:
            liar.cancel()
        await asyncio.gather(*liars, return_exceptions=True)
        return {**clients.outcome(began), "lied": lied}


async def asked_by(server: Server, num_clients: int, seconds: float) -> dict[str, float]:
    """So many clients for a while."""
    async with server.clients(num_clients) as clients:
        began = time.monotonic()
        await asyncio.sleep(seconds)
        return clients.outcome(began)


async def beside_slow_senders(
    server: Server, sent: bytes, num_senders: int, num_clients: int, seconds: float
) -> dict[str, float]:
    """Clients beside connections that send something at once and then a byte a second; `closed_s`: the seconds until
    half of these were closed by the server, where they were."""
    began, closed = time.monotonic(), list[float]()

    async def drip() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        reading = asyncio.create_task(reader.read())
        try:
            with suppress(OSError):
                writer.write(sent)
                while not reading.done():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.wait([reading], timeout=1)
            closed.append(time.monotonic() - began)
        finally:
            reading.cancel()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    senders = [asyncio.create_task(drip()) for _ in range(num_senders)]
    try:
        await asyncio.sleep(1)
        async with server.clients(num_clients) as clients:
            since = time.monotonic()
            await asyncio.sleep(seconds)
            found = clients.outcome(since)
        half = num_senders // 2
        return {**found, "closed_s": sorted(closed)[half]} if len(closed) > half else found
    finally:
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)


def slow_headers(headers: dict[str, str]) -> bytes:
    """The beginning of a request whose headers do not end."""
    return b"POST /v1/search HTTP/1.1\r\nhost: x\r\n" + _lines(headers) + b"x-slow: "


def slow_body(headers: dict[str, str]) -> bytes:
    """The beginning of a request whose body does not end."""
    return b"POST /v1/search HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n" + _lines(headers) + b"\r\n"


def _lines(headers: dict[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


async def greedy(server: Server, num_queries: int, k: int) -> dict[str, float]:
    """One request for very many items: its status, its bytes, its seconds, and by how many MB the processes of the
    server are larger afterwards."""
    body = {"queries": [{"text": "red"}] * num_queries, "k": k, "cutoff": {"top_k": k}}
    before = _memory(server)
    began, num_bytes = time.monotonic(), 0
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(headers=server.headers, timeout=timeout) as session,
        session.post(f"{server.url}/v1/search", json=body) as response,
    ):
        async for piece in response.content.iter_any():
            num_bytes += len(piece)
    seconds = time.monotonic() - began
    await asyncio.sleep(2)
    kept = (_memory(server) - before) / 1e6
    return {"status": response.status, "answer_mb": num_bytes / 1e6, "seconds": seconds, "kept_mb": kept}


def _memory(server: Server) -> int:
    return sum(process.memory_info().rss for process in (*server.replicas("Router"), *server.replicas("Shard")))


async def _versions(server: Server, count: int) -> set[str]:
    """Those that answer; "none" for a refusal, or a connection that was closed: the clients under load count these."""
    found = set[str]()
    async with aiohttp.ClientSession(headers=server.headers) as session:
        for _ in range(count):
            version = "none"
            with suppress(aiohttp.ClientError):
                async with session.get(f"{server.url}/v1/index") as response:
                    version = (await response.json())["version"] if response.status == 200 else "none"
            found.add(version)
    return found


def offline(storage: str, names: Sequence[str], texts: Sequence[str], k: int) -> Answers:
    """What brute force finds in this process, by version."""
    store, found = Storage(storage), Answers()
    for name in names:
        manifest = versions.read_manifest(store, name)
        model = version_model(store, manifest)
        items = version_items(store, manifest)
        searchable = version_family(store, manifest).searchable(model.similarity, items.state)
        with torch.no_grad():
            query = model.encode_queries(model.query_features(list(texts)))
        best = searchable.search(query, Wanted(k))
        lines = zip(best.item_rows.tolist(), best.scores.tolist(), strict=True)
        found[name] = [([items.item_ids[row] for row in rows], scores) for rows, scores in lines]
    return found


def own_processes(title: str) -> list[psutil.Process]:
    """Of this process's cluster, by a part of the title."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found += [process] if title in " ".join(process.cmdline()) else []
    return found
