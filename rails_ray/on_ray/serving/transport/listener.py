"""Server of one replica. Routers call it directly, because a call through a Serve handle takes several times as long as
a small search. They learn its address and its key from Serve; each connection must show the key.
"""

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import ray

from rails_ray.errors import LostGpuError, RailsRayError
from rails_ray.on_ray.serving.transport.codec import Replica, answered
from rails_ray.on_ray.serving.transport.frames import (
    ANSWER,
    ASK,
    CANCEL,
    HELLO,
    LARGEST,
    LONGEST_HELLO,
    Frame,
    FrameProtocol,
    frame,
)

HELLO_S = 5.0  # for a new connection to show its key
END_S = 10.0  # for calls under way when a replica ends, half of what Serve gives it
REFUSED = (RailsRayError, ValueError, KeyError, TypeError)  # what a search, or a body that is no message, raises
ANSWERED, UNKNOWN, FULL, FAILED, ENDING, LATE = 200, 404, 429, 500, 503, 504


@dataclass(frozen=True)
class Address:
    """Where a replica listens.

    url: tcp://HOST:PORT, a port that it chose.
    key: what its callers must show; its own.
    identity: `Manifest.contents_sha256` of the version that it serves: of the one that is wanted, if it has that.
    refused: why it cannot have that.
    gpu_scan, indexes_on_cpu: as of `ShardSearch`; or why a GPU that is reserved is not used.
    """

    url: str
    key: str = field(repr=False)
    identity: str
    refused: str | None = None
    gpu_scan: str | None = None
    indexes_on_cpu: frozenset[str] = frozenset()


class Listener:
    """Answers messages to a replica.

    Args:
        most_at_once: calls that are carried out at once.
        most_waiting: calls that may wait for a place; more are refused, as FULL. A call that gets no place in its time
            is answered LATE.
    """

    def __init__(self, replica: Replica, most_at_once: int, most_waiting: int) -> None:
        self._replica = replica
        self._key = secrets.token_hex(32)
        self._places = asyncio.Semaphore(most_at_once)
        self._most_ongoing = most_at_once + most_waiting
        self._server: asyncio.Server | None = None
        self._starting: asyncio.Task[str] | None = None
        self._connections = set[_Connection]()
        self._is_ending = False
        self.num_ongoing = 0

    async def address(self) -> Address:
        """Where it listens; from the first call on."""
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = asyncio.create_task(self._start())
        return Address(await asyncio.shield(self._starting), self._key, self._replica.identity)

    async def _start(self) -> str:
        host = ray.util.get_node_ip_address()
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self._answer, self._key, self._connections), host, 0
        )
        self._server = server
        return f"tcp://{f'[{host}]' if ':' in host else host}:{server.sockets[0].getsockname()[1]}"

    @property
    def is_open(self) -> bool:
        """Return whether it listens, or is about to."""
        return self._server is not None

    async def close(self) -> None:
        """Listen no more, and answer the calls under way; those that take longer than END_S are given up."""
        server, self._server, self._is_ending = self._server, None, True
        if server is None:
            return
        server.close()
        calls = [call for own in self._connections for call in own.calls.values()]
        if calls:
            await asyncio.wait(calls, timeout=END_S)
        for own in list(self._connections):
            own.end()

    async def _answer(self, method: str, message: bytes, within_ms: int) -> tuple[int, bytes]:
        """The status of a call, and the answer."""
        if self._is_ending:
            return ENDING, b""
        if method not in self._replica.methods:
            return UNKNOWN, b""
        if self.num_ongoing >= self._most_ongoing:
            return FULL, b""
        self.num_ongoing += 1
        try:
            if not await self._has_place(within_ms / 1000):
                return LATE, b""
            try:
                return ANSWERED, await answered(self._replica, method, message)
            finally:
                self._places.release()
        except LostGpuError:  # all later calls would fail too: routers ask this replica no more
            return ENDING, b""
        except REFUSED:  # the router asks by handle, which tells why
            return FAILED, b""
        finally:
            self.num_ongoing -= 1

    async def _has_place(self, within_s: float) -> bool:
        """Take a place; False if there is none in that time."""
        if not self._places.locked():
            return await self._places.acquire()
        try:
            async with asyncio.timeout(within_s):
                return await self._places.acquire()
        except TimeoutError:
            return False


Answer = Callable[[str, bytes, int], Awaitable[tuple[int, bytes]]]


class _Connection(FrameProtocol):
    """A router's connection.

    calls: those under way, by their numbers.
    """

    largest = LONGEST_HELLO  # until the key was shown

    def __init__(self, answer: Answer, key: str, others: "set[_Connection]") -> None:
        super().__init__()
        self._answer, self._key, self._others = answer, key.encode(), others
        self._is_known = False
        self._hurry: asyncio.TimerHandle | None = None
        self.calls = dict[int, asyncio.Task[None]]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._others.add(self)
        self._hurry = asyncio.get_running_loop().call_later(HELLO_S, self.close)

    def received(self, frame: Frame) -> None:
        if not self._is_known:
            self._greet(frame)
        elif frame.kind == ASK:
            method, _, message = frame.content.partition(b"\0")
            call = asyncio.create_task(self._call(frame.number, method.decode(errors="replace"), message, frame.detail))
            self.calls[frame.number] = call
            call.add_done_callback(lambda _: self.calls.pop(frame.number, None))
        elif frame.kind == CANCEL and frame.number in self.calls:
            self.calls[frame.number].cancel()

    def _greet(self, first: Frame) -> None:
        if first.kind != HELLO or not hmac.compare_digest(first.content, self._key):
            self.close()
            return
        self._is_known, self.largest = True, LARGEST
        if self._hurry is not None:
            self._hurry.cancel()

    async def _call(self, number: int, method: str, message: bytes, within_ms: int) -> None:
        try:
            status, answer = await self._answer(method, message, within_ms)
        except Exception:  # whatever it is, the router must not wait for an answer until its time is over
            await self._send(number, FAILED)
            raise  # which asyncio logs
        await self._send(number, status, answer)

    async def _send(self, number: int, status: int, answer: bytes = b"") -> None:
        with suppress(ConnectionError):  # the router has gone
            await self.send(frame(number, ANSWER, status, answer))

    def end(self) -> None:
        """Close it once what was written is sent."""
        if self.transport is not None:
            self.transport.close()

    def lost(self) -> None:
        self._others.discard(self)
        if self._hurry is not None:
            self._hurry.cancel()
        for call in list(self.calls.values()):
            call.cancel()
