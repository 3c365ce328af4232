"""The size and the pace of a body, before anything is done with the request.

If too many bodies are on their way, or hold too many bytes, the oldest is refused.
"""

import asyncio
from contextlib import suppress
from typing import Any

from rails_ray.serving.http.access import Access
from rails_ray.serving.http.asgi import ACCESS, Receive, Refusal, Refuse, Scope, Send
from rails_ray.serving.http.limits import BODY_S

MAX_WAITING, MAX_WAITING_BYTES = 1000, 256 * 2**20  # bodies on their way to a router


class BodyLimit:
    """Middleware: reads the body of a request within its limits, and passes it on in one piece.

    waiting: bytes of the bodies on their way, the oldest first.
    """

    def __init__(self, app: Any, refuse: Refuse) -> None:
        self._app, self._refuse = app, refuse
        self.waiting: dict[asyncio.Timeout, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access: Access = scope[ACCESS]
        body = access.too_long(dict(scope["headers"])) or await self._body(receive, access)
        if isinstance(body, Refusal):
            await self._refuse(scope, send, body)
        elif body is not None:
            await self._app(scope, _given(body, receive), send)

    async def _body(self, receive: Receive, access: Access) -> bytes | Refusal | None:
        """The body; None if the client disconnects."""
        try:
            async with asyncio.timeout(BODY_S) as patience:
                self.wait_for(patience, 0, access)
                try:
                    body = await self._read(receive, access, patience)
                finally:
                    self.waiting.pop(patience, None)
        except TimeoutError:
            return Refusal(
                408,
                f"the body must arrive within {BODY_S:g} s (sooner when the server is busy), got only a part of it",
                ((b"connection", b"close"),),
            )
        except ConnectionResetError:
            return None
        return access.too_large(len(body)) or body

    async def _read(self, receive: Receive, access: Access, patience: asyncio.Timeout) -> bytes:
        """The body, or what came until it was too large.

        Raises:
            ConnectionResetError: if the client disconnects.
        """
        pieces: list[bytes] = []
        num_bytes, is_whole = 0, False
        while not is_whole and num_bytes <= access.max_body_bytes:
            message = await receive()
            if message["type"] != "http.request":
                raise ConnectionResetError
            pieces.append(message.get("body", b""))
            num_bytes += len(pieces[-1])
            is_whole = not message.get("more_body", False)
            if not is_whole and patience in self.waiting:
                self.wait_for(patience, num_bytes, access)
        return b"".join(pieces)

    def wait_for(self, patience: asyncio.Timeout, num_bytes: int, access: Access) -> None:
        """Record the bytes of a body so far, and refuse the oldest bodies if there are too many."""
        self.waiting[patience] = num_bytes
        max_bytes = max(MAX_WAITING_BYTES, access.max_body_bytes)
        while len(self.waiting) > MAX_WAITING or sum(self.waiting.values()) > max_bytes:
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            with suppress(RuntimeError):  # it is timing out right now
                oldest.reschedule(asyncio.get_running_loop().time())


def _given(body: bytes, receive: Receive) -> Receive:
    """Make what an application receives: the body in one piece, then whatever follows."""
    is_given = False

    async def given() -> dict[str, Any]:
        nonlocal is_given
        if is_given:
            later: dict[str, Any] = await receive()
            return later
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return given
