"""What `chaos` does to a server while clients ask it."""

import asyncio
import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import aiohttp
import psutil

from jobs.benches.chaos_clients import K, Server

SWAP_S = 300.0  # for all replicas of another version to start, on a busy machine
LEAVE_S = 0.02  # before a client goes away, and between two turns


async def swapped(server: Server, version: str, num_clients: int, seconds: float) -> dict[str, float]:
    """Under load another version is deployed, until only that one answers."""
    async with server.clients(num_clients) as clients:
        await clients.answers(5 * num_clients)
        began = time.monotonic()
        await asyncio.to_thread(server.swap, version)
        await served(server, version)
        await asyncio.sleep(seconds / 4)
        return clients.outcome(began)


async def served(server: Server, version: str) -> None:
    """Wait until only this version answers.

    Raises:
        TimeoutError: if that takes too long.
    """
    async with asyncio.timeout(SWAP_S):
        while await _versions(server, 20) != {version}:
            await asyncio.sleep(0.2)


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
                with suppress(psutil.NoSuchProcess):  # Serve has replaced it
                    victim.suspend()
            await asyncio.sleep(seconds / 2 / turns)
            for victim in victims:
                with suppress(psutil.NoSuchProcess):
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
