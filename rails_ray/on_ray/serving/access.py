"""Who may ask and how much at once: API keys and the size of a request, checked before any of it is understood."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHORTEST_KEY = 16  # characters; of random hexadecimal digits, 64 bits
BODY_S = 30.0  # for a body to arrive: slow senders must not hold the places of others
Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]


class Keys:
    """API keys, kept as their SHA-256 and compared in a time that tells nothing of them."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @staticmethod
    def read(path: str) -> "Keys":
        """The keys of a file, one a line; lines that are empty or begin with # are passed over.

        Raises:
            ValueError: if the file cannot be read, holds none, or one that is too short to be secret.
        """
        try:
            lines = Path(path).read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeError) as error:
            raise ValueError(f"keys_file must be a text file of ASCII keys, got {path}: {error}") from None
        keys = []
        for number, line in enumerate(lines, start=1):
            key = line.strip()
            if not key or key.startswith("#"):
                continue
            if len(key) < SHORTEST_KEY:
                raise ValueError(
                    f"line {number} of {path} must be a key of at least {SHORTEST_KEY} characters, got {len(key)}"
                )
            keys.append(key)
        if not keys:
            raise ValueError(f"keys_file must hold at least 1 key, got none in {path}")
        return Keys(keys)

    def hold(self, key: bytes) -> bool:
        """Whether this is one of the keys; each is compared, wherever it differs and whether one is found or not."""
        digest = hashlib.sha256(key).digest()
        return sum([hmac.compare_digest(known, digest) for known in self._digests]) > 0


@dataclass(frozen=True)
class Access:
    """
    keys: that are let in; None lets everyone in.
    max_body_bytes: of a request.
    """

    keys: Keys | None
    max_body_bytes: int

    def refusal(self, headers: Sequence[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """Status and sentence for a request that has no valid key, or says that it is too large; None to let it in."""
        found = dict(headers)
        given_keys = [value for name, value in headers if name == b"authorization"]
        # Of several, a proxy in front may have judged another one than we would.
        scheme, _, key = given_keys[0].partition(b" ") if len(given_keys) == 1 else (b"", b"", b"")
        given = key.strip() if scheme.lower() == b"bearer" else b""
        if self.keys is not None and not self.keys.hold(given):
            if given:
                return 403, "the bearer key must be one that this server knows, got another"
            return 401, "a request must have the header `Authorization: Bearer KEY`, got none"
        length = found.get(b"content-length", b"0")
        return self.too_large(int(length)) if length.isdigit() else None

    def too_large(self, num_bytes: int) -> tuple[int, str] | None:
        """Status and sentence for a body of so many bytes, or of so many until now, if it may not be as large."""
        if num_bytes <= self.max_body_bytes:
            return None
        return (
            413,
            f"the body must have at most {self.max_body_bytes} bytes, got {num_bytes}: ask fewer queries at once",
        )


class Guard:
    """An ASGI application before another: it answers what may not come in.

    Args:
        access: asked at each request, so that keys can change.
    """

    def __init__(self, app: Any, access: Callable[[], Access]) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket, which nothing here answers: closed before it opens
            await send({"type": "websocket.close", "code": 1008})
            return
        access = self._access()
        refusal = access.refusal(scope["headers"])
        body = b""
        if refusal is None:
            try:
                async with asyncio.timeout(BODY_S):
                    body = await _read(receive, access.max_body_bytes)
            except TimeoutError:
                refusal = 408, f"the body must be sent within {BODY_S:g} s, got a part of it"
            except ConnectionResetError:  # whoever asked has gone
                return
            refusal = refusal or access.too_large(len(body))
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        is_given = False

        async def given() -> dict[str, Any]:
            nonlocal is_given
            if is_given:
                later: dict[str, Any] = await receive()
                return later
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, given, send)


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


async def _refuse(send: Send, status: int, message: str) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": message}).encode()})
