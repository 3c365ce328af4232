"""The clients of `peers`: connections that stay open, each with one request under way, all in this process.

Requests are bytes made before the clock starts, and answers are split by a parser in C, so that the clients leave
the cores to the server: the rows say what share of one they take.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import httptools

WARM_S = 1.0
CLOSED = "a server must keep its connections, got one that is closed"


class Connection(Protocol):
    """A connection of one client."""

    async def ask(self, request: Any) -> Any:
        """Send a request and return its answer.

        Raises:
            OSError: if the connection ends before.
            ValueError: if the answer says that something is wrong.
        """
        ...

    async def close(self) -> None:
        """End it."""
        ...


Connect = Callable[[], Awaitable[Connection]]


class HttpConnection(asyncio.Protocol):
    """A connection of HTTP/1.1. A request is its bytes, an answer its body."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._ended = asyncio.Event()

    @classmethod
    async def to(cls, port: int) -> "HttpConnection":
        """Connect to a server of this machine.

        Raises:
            OSError: if none listens.
        """
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def ask(self, request: bytes) -> bytes:
        """The contract of `Connection`."""
        if self._ended.is_set():
            raise ConnectionError(CLOSED)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    async def close(self) -> None:
        """The contract of `Connection`."""
        self._transport.close()
        await self._ended.wait()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        self._body += piece

    def on_message_complete(self) -> None:
        body, status = bytes(self._body), self._parser.get_status_code()
        self._body.clear()
        assert self._answer is not None
        if 200 <= status < 300:
            self._answer.set_result(body)
        else:
            self._answer.set_exception(ValueError(f"a request must be answered with 200, got {status}: {body[:300]!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError(CLOSED))


def post(path: str, body: Any) -> bytes:
    """The bytes of a request with a body of JSON."""
    text = json.dumps(body, separators=(",", ":")).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return head.encode() + b"\r\n\r\n" + text


async def one_by_one(connect: Connect, requests: Sequence[Any], most_s: float) -> tuple[list[float], list[Any]]:
    """Seconds of each request of one client, as many as begin within `most_s`, and their answers."""
    took, answers = list[float](), list[Any]()
    async with AsyncExitStack() as stack:
        connection = await connect()
        stack.push_async_callback(connection.close)
        ends = time.perf_counter() + most_s
        for request in requests:
            started = time.perf_counter()
            answers.append(await connection.ask(request))
            took.append(time.perf_counter() - started)
            if started > ends:
                break
    return took, answers


async def loaded(connect: Connect, requests: Sequence[Any], clients: int, seconds: float) -> dict[str, float]:
    """Requests a second of some clients, of which each sends its next request when it has an answer.

    Returns:
        `per_s`, and `client_cpu`, the share of a core that the clients took.
    """
    async with AsyncExitStack() as stack:
        connections = list[Connection]()
        for _ in range(clients):
            connections.append(await connect())
            stack.push_async_callback(connections[-1].close)
        await _turns(connections, requests, min(WARM_S, seconds))
        cpu, started = time.process_time(), time.perf_counter()
        answered = await _turns(connections, requests, seconds)
        lasted = time.perf_counter() - started
        return {"per_s": answered / lasted, "client_cpu": (time.process_time() - cpu) / lasted}


async def _turns(connections: Sequence[Connection], requests: Sequence[Any], seconds: float) -> int:
    """How many requests were answered."""
    ends = time.perf_counter() + seconds

    async def client(connection: Connection, number: int) -> int:
        answered = 0
        while time.perf_counter() < ends:
            await connection.ask(requests[number % len(requests)])
            number += len(connections)
            answered += 1
        return answered

    return sum(await asyncio.gather(*(client(own, number) for number, own in enumerate(connections))))
