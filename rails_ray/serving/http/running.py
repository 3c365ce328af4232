"""uvicorn in a thread of this process, from the first connection to the last answer.

The interpreter must not end under a server that still answers: what it begins then fails with a 500. So the block of
`running` is left only once the server has ended, whatever signals arrive. Nor may anyone wait for it by
`Thread.join`: a signal that interrupts that marks the thread as ended (python/cpython#90882).
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rails_ray.errors import UnavailableError
from rails_ray.serving.http.asgi import Refusal, refuse
from rails_ray.serving.http.header_timeout import HeaderTimeoutProtocol

START_S, STOP_S = 30.0, 10  # to begin to listen; for answers under way to end
STOPPED = Refusal(503, "the server must run to answer, got a signal to stop: ask another one, or try again", (
    (b"retry-after", b"1"),
    (b"connection", b"close"),
))  # fmt: skip


def nothing() -> None:
    """Do nothing."""


@contextmanager
def running(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    shared: socket.socket | None = None,
    at_start: Callable[[], None] = nothing,
) -> Iterator["Running"]:
    """Serve an application inside the block, and yield the server. At the end answers that are under way have STOP_S
    seconds; after a second signal they have none.

    Args:
        shared: a socket that listens there already, with other processes.
        at_start: called in the server's thread once all is loaded, before it listens.

    Raises:
        UnavailableError: if the server does not begin to listen.
    """
    config = uvicorn.Config(
        RefusesAtEnd(app),
        host=host,
        port=port,
        http=HeaderTimeoutProtocol,
        lifespan="off",  # there is none, and a second signal would leave its task behind
        log_level="warning",
        timeout_graceful_shutdown=STOP_S,
    )
    server = _Uvicorn(config, at_start)
    sockets = None if shared is None else [shared]
    own = Running(partial(server.run, sockets))
    own.start()
    try:
        if not server.is_listening.wait(START_S) or not server.started:
            raise UnavailableError(f"the server must listen at {host}:{port} within {START_S:g} s, got none that does")
        yield own
    finally:
        server.should_exit = True
        while own.is_alive():
            try:
                own.join()
            except KeyboardInterrupt:  # the first is on its way already
                server.force_exit = True


class Running:
    """A server in a thread of its own.

    Args:
        serve: answers until it is stopped.
    """

    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve, self._has_ended = serve, threading.Event()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def start(self) -> None:
        """Begin to serve, in a thread."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._has_ended.set()

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return not self._has_ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, or so many seconds."""
        self._has_ended.wait(timeout)


class RefusesAtEnd:
    """An ASGI application in front of another: a request that is cancelled gets 503. uvicorn cancels what outlasts its
    end, and would answer 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if scope["type"] != "http" or has_begun:
                raise
            await refuse(send, STOPPED)


class _Uvicorn(uvicorn.Server):
    """A server that tells when it has begun to listen, or has failed to."""

    def __init__(self, config: uvicorn.Config, at_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._at_start, self.is_listening = at_start, threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            self._at_start()
            await super().startup(sockets)
        finally:
            self.is_listening.set()
