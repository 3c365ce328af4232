"""Who gets in: the rules of a server, its keys, and how often a key may ask."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rails_ray.serving.http.asgi import ACCESS, KEY, Receive, Refusal, Refuse, Scope, Send
from rails_ray.serving.http.keys import Key, Keys

# What an orchestrator asks, which has no key, and the files of the console: nothing of what is served.
WITHOUT_KEY = (
    *("/v1/health/live", "/v1/health/ready", "/v2/health/live", "/v2/health/ready"),
    *("/", "/console.js", "/console.css"),
)
FOR_ADMINS = ("/v1/items", "/metrics", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json")
NOBODY_GETS_IN = "a request must have a valid key, but this server has none: its file of keys is missing or empty"


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
            scopes = ", ".join(sorted(key.scopes))
            return None, Refusal(
                403, f"the bearer key must have the scope {needed} for this path, got one for {scopes}"
            )
        return key, None

    def too_long(self, headers: Mapping[bytes, bytes]) -> Refusal | None:
        """The refusal of too large a content-length; None if that is allowed."""
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


class KeyCheck:
    """Middleware: refuses requests without a valid key, and notes the key of the others."""

    def __init__(self, app: Any, refuse: Refuse) -> None:
        self._app, self._refuse = app, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access: Access = scope[ACCESS]
        key, refusal = access.key_of(scope)
        if refusal is not None:
            await self._refuse(scope, send, refusal)
        else:
            await self._app({**scope, KEY: key}, receive, send)


class RateLimit:
    """Middleware: refuses requests beyond the rate of their key, which may make a second's requests at once."""

    def __init__(self, app: Any, refuse: Refuse, clock: Callable[[], float]) -> None:
        self._app, self._refuse, self._clock = app, refuse, clock
        self._left: dict[bytes, tuple[float, float]] = {}  # by key: requests that it may make, and when that was

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._too_often(scope[KEY])
        if refusal is not None:
            await self._refuse(scope, send, refusal)
        else:
            await self._app(scope, receive, send)

    def _too_often(self, key: Key | None) -> Refusal | None:
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
