"""HTTP server of one replica. Routers call it directly, because a call through a Serve handle takes several times as
long as a small search. They learn its address and its key from Serve; each request must show the key.
"""

import asyncio
import hmac
import secrets
from dataclasses import dataclass, field

import ray
from aiohttp import web

from rails_ray.errors import RailsRayError
from rails_ray.on_ray.serving.transport.codec import Replica, answered

IDLE_S = 60.0  # a connection is kept so long by the router, and much longer by the replica
END_S = 10.0  # for calls under way when a replica ends, half of what Serve gives it
KEY, WITHIN_MS = "x-rails-ray-key", "x-rails-ray-within-ms"
REFUSED = (RailsRayError, ValueError, KeyError, TypeError)  # what a search, or a body that is no message, raises


@dataclass(frozen=True)
class Address:
    """Where a replica listens.

    url: with the port, which it chose.
    key: what its callers must show; its own.
    identity: `Manifest.contents_sha256` of the version that it serves.
    """

    url: str
    key: str = field(repr=False)
    identity: str


class Listener:
    """Answers messages to a replica.

    Args:
        most_at_once: calls that are carried out at once.
        most_waiting: calls that may wait for a place; more get 429. A call that gets no place in its time
            gets 504.
    """

    def __init__(self, replica: Replica, most_at_once: int, most_waiting: int) -> None:
        self._replica = replica
        self._key = secrets.token_hex(32)
        self._places = asyncio.Semaphore(most_at_once)
        self._most_ongoing = most_at_once + most_waiting
        self._runner: web.ServerRunner | None = None
        self._starting: asyncio.Task[str] | None = None
        self.num_ongoing = 0

    async def address(self) -> Address:
        """Where it listens; from the first call on."""
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = asyncio.create_task(self._start())
        return Address(await asyncio.shield(self._starting), self._key, self._replica.identity)

    async def _start(self) -> str:
        server = web.Server(self._answer, handler_cancellation=True, keepalive_timeout=60 * IDLE_S)
        self._runner = web.ServerRunner(server, shutdown_timeout=END_S)
        await self._runner.setup()
        host = ray.util.get_node_ip_address()
        await web.TCPSite(self._runner, host, 0).start()
        return f"http://{f'[{host}]' if ':' in host else host}:{self._runner.addresses[0][1]}"

    @property
    def is_open(self) -> bool:
        """Return whether it listens, or is about to."""
        return self._runner is not None

    async def close(self) -> None:
        """Listen no more, and answer the calls under way; those that take longer than END_S are given up."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        method = request.path[1:]
        if not hmac.compare_digest(request.headers.get(KEY, "").encode(errors="surrogateescape"), self._key.encode()):
            return web.Response(status=401)
        if method not in self._replica.methods:
            return web.Response(status=404)
        if self.num_ongoing >= self._most_ongoing:
            return web.Response(status=429)
        self.num_ongoing += 1
        try:
            message = await request.content.read()
            if not await self._has_place(request.headers.get(WITHIN_MS)):
                return web.Response(status=504)
            try:
                return web.Response(body=await answered(self._replica, method, message))
            finally:
                self._places.release()
        except REFUSED:  # the router asks by handle, which tells why; aiohttp logs any other failure, with status 500
            return web.Response(status=500)
        finally:
            self.num_ongoing -= 1

    async def _has_place(self, within_ms: str | None) -> bool:
        """Take a place; False if there is none in that time."""
        try:
            async with asyncio.timeout(None if within_ms is None else float(within_ms) / 1000):
                await self._places.acquire()
        except TimeoutError:
            return False
        return True
