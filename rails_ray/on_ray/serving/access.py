"""Who may ask and how much at once, checked before any of a request is understood: API keys, the size and the pace of
a body, and the number of requests that are answered at the same time.

A body that arrives slowly holds no place of those that are answered, and the one that has been waited for longest gives
way where too many are on their way. A request for which there is no place is refused at once and told when to come
again: as many seconds as the last answer took, which is how long those inside take to leave.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rails_ray.on_ray.serving.keys import Keys

BODY_S = 20.0  # for a body to arrive; Serve would give up on the request after thirty, and not say why
MOST_WAITED_FOR = 1000  # bodies on their way to a router: some 100 kB each of sockets and buffers
LONGEST_RETRY_S = 30
NOBODY_GETS_IN = (
    "a request must have a key of this server, and its file of keys is missing or holds none: whoever runs it must "
    "write one into it"
)
Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Refusal:
    """
    message: a sentence.
    headers: beside those of every refusal.
    """

    status: int
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True)
class Access:
    """
    keys: that are let in; None lets everyone in.
    max_body_bytes: of a request.
    max_requests: that are answered at once; others are refused.
    """

    keys: Keys | None
    max_body_bytes: int
    max_requests: int

    def refusal(self, headers: Sequence[tuple[bytes, bytes]]) -> Refusal | None:
        """Why a request that has no valid key, or says that it is too large, does not come in; None to let it in."""
        found = dict(headers)
        given_keys = [value for name, value in headers if name == b"authorization"]
        # Of several, a proxy in front may have judged another one than we would.
        scheme, _, key = given_keys[0].partition(b" ") if len(given_keys) == 1 else (b"", b"", b"")
        given = key.strip() if scheme.lower() == b"bearer" else b""
        if self.keys is not None and not self.keys.hold(given):
            ask = ((b"www-authenticate", b"Bearer"),)
            if not self.keys.digests:
                return Refusal(401, NOBODY_GETS_IN, ask)
            if given:
                return Refusal(403, "the bearer key must be one that this server knows, got another")
            return Refusal(401, "a request must have the header `Authorization: Bearer KEY`, got none", ask)
        length = found.get(b"content-length", b"0")
        return self.too_large(int(length)) if length.isdigit() else None

    def too_large(self, num_bytes: int) -> Refusal | None:
        """Why a body of so many bytes, or of so many until now, is refused; None if it may be as large."""
        if num_bytes <= self.max_body_bytes:
            return None
        return Refusal(
            413, f"the body must have at most {self.max_body_bytes} bytes, got {num_bytes}: ask fewer queries at once"
        )


class Guard:
    """An ASGI application before another: it answers what may not come in.

    Args:
        access: asked at each request, so that keys can change.
    """

    def __init__(self, app: Any, access: Callable[[], Access], clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._access = access
        self._clock = clock
        self._waited_for: dict[asyncio.Timeout, None] = {}  # bodies on their way, the oldest first
        self._num_inside = 0
        self._last_s = 0.0  # that an answer took

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket, which nothing here answers: closed before it opens
            await send({"type": "websocket.close", "code": 1008})
            return
        access = self._access()
        body = access.refusal(scope["headers"]) or await self._body(receive, access)
        if body is None:
            return
        if isinstance(body, Refusal):
            await _refuse(send, body)
        elif scope["method"] != "POST":  # cheap, and what tells whether the server is well
            await self._app(scope, _given(body, receive), send)
        elif self._num_inside >= access.max_requests:
            await _refuse(send, self._busy(access))
        else:
            self._num_inside += 1
            began = self._clock()
            try:
                await self._app(scope, _given(body, receive), send)
            finally:
                self._num_inside -= 1
                self._last_s = self._clock() - began

    async def _body(self, receive: Receive, access: Access) -> bytes | Refusal | None:
        """The body; None if whoever sends it goes away."""
        try:
            async with asyncio.timeout(BODY_S) as patience:
                self._waited_for[patience] = None
                if len(self._waited_for) > MOST_WAITED_FOR:
                    next(iter(self._waited_for)).reschedule(asyncio.get_running_loop().time())
                try:
                    body = await _read(receive, access.max_body_bytes)
                finally:
                    del self._waited_for[patience]
        except TimeoutError:
            return Refusal(
                408,
                f"the body must be sent within {BODY_S:g} s, and sooner where {MOST_WAITED_FOR} others are on their "
                "way, got a part of it",
                ((b"connection", b"close"),),
            )
        except ConnectionResetError:
            return None
        return access.too_large(len(body)) or body

    def _busy(self, access: Access) -> Refusal:
        seconds = min(max(1, math.ceil(self._last_s)), LONGEST_RETRY_S)
        return Refusal(
            503,
            f"at most {access.max_requests} requests are answered at once, got one more: ask again in {seconds} s",
            ((b"retry-after", str(seconds).encode()),),
        )


def _given(body: bytes, receive: Receive) -> Receive:
    """What an application receives: the body in one piece, and then what comes after it."""
    is_given = False

    async def given() -> dict[str, Any]:
        nonlocal is_given
        if is_given:
            later: dict[str, Any] = await receive()
            return later
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return given


async def _read(receive: Receive, max_bytes: int) -> bytes:
    """The body, or what came until it was too large.

    Raises:
        ConnectionResetError: if whoever sends it goes away.
    """
    pieces: list[bytes] = []
    num_bytes, is_whole = 0, False
    while not is_whole and num_bytes <= max_bytes:
        message = await receive()
        if message["type"] != "http.request":
            raise ConnectionResetError
        pieces.append(message.get("body", b""))
        num_bytes += len(pieces[-1])
        is_whole = not message.get("more_body", False)
    return b"".join(pieces)


async def _refuse(send: Send, refusal: Refusal) -> None:
    headers = [(b"content-type", b"application/json"), *refusal.headers]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": refusal.message}).encode()})
