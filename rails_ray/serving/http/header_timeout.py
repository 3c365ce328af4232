"""A bound on the time to send the headers of a request, as uvicorn alone waits for ever."""

import asyncio
from typing import Any

from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rails_ray.serving.http.limits import HEADERS_S


def bound() -> None:
    """Make uvicorn's servers in this process use `HeaderTimeoutProtocol`."""
    HTTP_PROTOCOLS["auto"] = f"{__name__}:HeaderTimeoutProtocol"


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """uvicorn's protocol, but it closes a connection whose headers take longer than `HEADERS_S` from its opening, or
    from the first byte of a later request."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        self._wait_no_longer()
        super().on_headers_complete()

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
