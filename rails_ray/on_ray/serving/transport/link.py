"""A router's connection to one replica, over which all its calls go."""

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

from rails_ray.on_ray.serving.transport.frames import (
    ANSWER,
    ASK,
    CANCEL,
    HELLO,
    MOST_MS,
    Frame,
    FrameProtocol,
    frame,
)
from rails_ray.on_ray.serving.transport.listener import Address

CONNECT_TIMEOUT_S = 1.0


class Link:
    """The connection to a replica, made by the first call and again by the first after it was lost.

    Args:
        address: where the replica listens.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connecting: asyncio.Task[_Client] | None = None

    async def ask(self, method: str, message: bytes, within_s: float) -> tuple[int, bytes]:
        """The status and the message of an answer.

        Args:
            within_s: how long the caller waits.

        Raises:
            ConnectionError: if the replica cannot be reached, or closes the connection.
            ValueError: if the message is too large.
        """
        client = await self._client()
        return await client.ask(method, message, within_s)

    async def _client(self) -> "_Client":
        if self._connecting is None or (self._connecting.done() and not _is_up(self._connecting)):
            self._connecting = asyncio.create_task(self._connect())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> "_Client":
        parts = urlsplit(self._address.url)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                loop = asyncio.get_running_loop()
                _, client = await loop.create_connection(_Client, parts.hostname or "", parts.port or 0)
        except (TimeoutError, OSError) as error:
            raise ConnectionError(f"no connection to {self._address.url}: {error}") from None
        client.send_now(frame(0, HELLO, 0, self._address.key.encode(errors="surrogateescape")))
        return client

    def close(self) -> None:
        """Close it; calls under way fail."""
        if self._connecting is None:
            return
        if not self._connecting.done():
            self._connecting.cancel()
        elif _is_up(self._connecting):
            self._connecting.result().close()

    def leave(self) -> None:
        """Close it once no call is under way."""
        if self._connecting is not None and self._connecting.done() and _is_up(self._connecting):
            self._connecting.result().leave()


def _is_up(connecting: "asyncio.Task[_Client]") -> bool:
    if connecting.cancelled() or connecting.exception() is not None:
        return False
    return connecting.result().transport is not None


class _Client(FrameProtocol):
    def __init__(self) -> None:
        super().__init__()
        self._last_number, self._is_left = 0, False
        self._calls = dict[int, asyncio.Future[tuple[int, bytes]]]()

    async def ask(self, method: str, message: bytes, within_s: float) -> tuple[int, bytes]:
        self._last_number += 1
        number, answer = self._last_number, asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        within_ms = min(max(round(1000 * within_s), 0), MOST_MS)
        try:
            await self.send(frame(number, ASK, within_ms, method.encode() + b"\0", message))
            found: tuple[int, bytes] = await answer
            return found
        except asyncio.CancelledError:
            with suppress(ConnectionError):
                self.send_now(frame(number, CANCEL))
            raise
        finally:
            self._calls.pop(number, None)
            self._close_if_left()

    def leave(self) -> None:
        """Close the connection once no call is under way."""
        self._is_left = True
        self._close_if_left()

    def _close_if_left(self) -> None:
        if self._is_left and not self._calls:
            self.close()

    def received(self, frame: Frame) -> None:
        answer = self._calls.get(frame.number)
        if frame.kind == ANSWER and answer is not None and not answer.done():
            answer.set_result((frame.detail, frame.content))

    def lost(self) -> None:
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("the replica closed the connection"))
