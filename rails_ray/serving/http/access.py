"""Limits checked before a request is parsed: API keys, the size and the pace of a body, and the number of requests
answered at once.

A slow body takes no place. If too many bodies are on their way, or hold too many bytes, the oldest is refused. If all
places are taken, a request is refused at once. Its Retry-After is the seconds that the last answer took: by then a
place should be free. A place is free again when its answer begins, so slow readers hold none.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rails_ray.serving.http.keys import Key, Keys
from rails_ray.serving.http.limits import BODY_S

MAX_WAITING, MAX_WAITING_BYTES = 1000, 256 * 2**20  # bodies on their way to a router
LONGEST_RETRY_S = 30  # Serve's own limit for a request
# What an orchestrator asks, which has no key, and the files of the console: nothing of what is served.
WITHOUT_KEY = (
    *("/v1/health/live", "/v1/health/ready", "/v2/health/live", "/v2/health/ready"),
    *("/", "/console.js", "/console.css"),
)
FOR_ADMINS = ("/metrics", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json")
NOBODY_GETS_IN = "a request must have a valid key, but this server has none: its file of keys is missing or empty"
Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Refusal:
    """
    message: one sentence.
    headers: in addition to the headers of every refusal.
    """

    status: int
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True)
class Access:
    """
    keys: valid keys; None lets everyone in.
    max_body_bytes: limit for the body of a request.
    max_requests: requests answered at once; others are refused.
    """

    keys: Keys | None
    max_body_bytes: int
    max_requests: int

    def refusal(self, scope: Scope) -> Refusal | None:
        """The refusal of a request without a valid key, or with too large a content-length; None to let it in."""
        return self.key_of(scope)[1] or self._of_length(dict(scope["headers"]))

    def key_of(self, scope: Scope) -> tuple[Key | None, Refusal | None]:
        """The key of a request, or why it does not open the door; neither if it needs none."""
        if self.keys is None or (scope["method"] == "GET" and scope["path"] in WITHOUT_KEY):
            return None, None
        given_keys = [value for name, value in scope["headers"] if name == b"authorization"]
        # With two keys, a proxy in front may have checked the other one.
        scheme, _, word = given_keys[0].partition(b" ") if len(given_keys) == 1 else (b"", b"", b"")
        given = word.strip() if scheme.lower() == b"bearer" else b""
        key = self.keys.find(given)
        if key is None or not given:
            ask = ((b"www-authenticate", b"Bearer"),)
            if not self.keys.known:
                return None, Refusal(401, NOBODY_GETS_IN, ask)
            if given:
                return None, Refusal(403, "the bearer key must be one that this server knows, got another")
            return None, Refusal(401, "a request must have the header `Authorization: Bearer KEY`, got none", ask)
        needed = "admin" if scope["path"] in FOR_ADMINS else "search"
        if needed not in key.scopes:
            came = ", ".join(sorted(key.scopes))
            return None, Refusal(403, f"the bearer key must have the scope {needed} for this path, got one for {came}")
        return key, None

    def _of_length(self, headers: Mapping[bytes, bytes]) -> Refusal | None:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            return None
        return self.too_large(int(length[:20]))  # Python refuses to read thousands of digits

    def too_large(self, num_bytes: int) -> Refusal | None:
        """The refusal of a body of `num_bytes` or more; None if that is allowed."""
        if num_bytes <= self.max_body_bytes:
            return None
        return Refusal(
            413, f"the body must have at most {self.max_body_bytes} bytes, got {num_bytes}: ask fewer queries at once"
        )


class Guard:
    """An ASGI application in front of another. It answers the requests that are refused.

    Args:
        access: called for each request, because keys can change.
        on_refusal: called with the scope and the status of each refusal.

    waiting: bytes of the bodies on their way, the oldest first.
    num_inside: requests that hold a place.
    last_s: duration of the last answer.
    """

    def __init__(
        self,
        app: Any,
        access: Callable[[], Access],
        clock: Callable[[], float] = time.monotonic,
        on_refusal: Callable[[Scope, int], None] = lambda scope, status: None,
    ) -> None:
        self._app, self._on_refusal = app, on_refusal
        self._access = access
        self._clock = clock
        self.waiting: dict[asyncio.Timeout, int] = {}
        self.num_inside = 0
        self.last_s = 0.0
        self._left: dict[bytes, tuple[float, float]] = {}  # by key: requests that it may make, and when that was

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: nothing here answers it, so close it before it opens
            await send({"type": "websocket.close", "code": 1008})
            return
        access = self._access()
        body = access.refusal(scope) or self._too_often(access, scope) or await self._body(receive, access)
        if body is None:
            return
        if isinstance(body, Refusal):
            await self._refuse(scope, send, body)
        elif scope["method"] != "POST":  # cheap, and includes the health check
            await self._app(scope, _given(body, receive), send)
        elif self.num_inside >= access.max_requests:
            await self._refuse(scope, send, self._busy(access))
        else:
            await self._inside(scope, _given(body, receive), send)

    async def _refuse(self, scope: Scope, send: Send, refusal: Refusal) -> None:
        self._on_refusal(scope, refusal.status)
        headers = [(b"content-type", b"application/json"), *refusal.headers]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": refusal.message}).encode()})

    async def _inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application's answer, which holds a place until it begins."""
        self.num_inside += 1
        began, has_left = self._clock(), False

        def leave() -> None:
            nonlocal has_left
            self.num_inside -= not has_left
            has_left = True

        async def sending(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                leave()
                if message["status"] == 200:
                    self.last_s = self._clock() - began
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            leave()

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

    def _too_often(self, access: Access, scope: Scope) -> Refusal | None:
        """The refusal of a request beyond the rate of its key. A key may make a second's requests at once."""
        key, _ = access.key_of(scope)
        if key is None or key.rate is None:
            return None
        now, most = self._clock(), max(key.rate, 1.0)
        left, since = self._left.get(key.digest, (most, now))
        left = min(most, left + key.rate * (now - since))
        self._left[key.digest] = (left - (left >= 1), now)
        if left >= 1:
            return None
        seconds = max(1, math.ceil((1 - left) / key.rate))
        return Refusal(
            429,
            f"this key may make {key.rate:g} requests a second of a router, got more: ask again in {seconds} s",
            ((b"retry-after", str(seconds).encode()),),
        )

    def _busy(self, access: Access) -> Refusal:
        seconds = min(max(1, math.ceil(self.last_s)), LONGEST_RETRY_S)
        return Refusal(
            429,
            f"at most {access.max_requests} requests are answered at once, got one more: ask again in {seconds} s",
            ((b"retry-after", str(seconds).encode()),),
        )


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
