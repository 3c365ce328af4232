"""A time limit for the headers of a request, and one write for the headers and the body of an answer.

uvicorn alone waits for ever, and writes twice, which wakes the reader twice.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rails_ray.serving.http.limits import HEADERS_S


def bound() -> None:
    """Make uvicorn's servers in this process use `HeaderTimeoutProtocol`."""
    HTTP_PROTOCOLS["auto"] = f"{__name__}:HeaderTimeoutProtocol"


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """uvicorn's protocol, but it closes a connection whose headers take longer than `HEADERS_S` from its opening, or
    from the first byte of a later request. It writes the headers of an answer with the first of its body."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        self._wait_no_longer()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # its task has not begun
            _OneWrite.of(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_longer()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._due is None:
            self._due = self.loop.call_later(HEADERS_S, self._close)

    def _wait_no_longer(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _close(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # otherwise it would land in the middle of an answer
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()


class _OneWrite:
    """The transport of one request and its answer."""

    def __init__(self, cycle: Any) -> None:
        self._cycle, self._transport = cycle, cycle.transport
        self._head: bytes | None = None  # empty once it was written

    @classmethod
    def of(cls, cycle: Any) -> None:
        own = cls(cycle)
        cycle.transport, cycle.on_response = own, partial(own._end, cycle.on_response)

    def write(self, data: bytes) -> None:
        if not self._cycle.response_started:  # 100 Continue
            self._transport.write(data)
        elif self._head is None:
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._head = b""

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")

    def _end(self, on_response: Callable[[], None]) -> None:
        self._flush()  # an answer without a body
        on_response()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
