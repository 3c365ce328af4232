"""Pages of other origins: which ones a browser may let ask this server.

A browser asks first (a preflight), without a key. A page of no allowed origin gets its answer without the headers by
which the browser would hand it on.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

ANY = "*"
ORIGIN = re.compile(r"https?://[^/\s?#@*]+")
SHOWN = ("x-request-id", "server-timing", "retry-after")  # headers that a page may read
PASSED = "rails_ray.origins"  # in a scope: this process has decided already


def checked(origins: Sequence[str]) -> list[str]:
    """Return the origins.

    Raises:
        ValueError: if one is none that a browser sends.
    """
    for origin in origins:
        if origin != ANY and not ORIGIN.fullmatch(origin):
            raise ValueError(
                f"an allowed origin must be as https://shop.example or http://localhost:3000, got {origin!r}"
            )
    return list(origins)


class AllowedOrigins:
    """An ASGI application in front of another.

    Args:
        origins: called for each request of a page, because the server may not exist yet when this is made; a `*` among
            them stands for any origin.
    """

    def __init__(self, app: ASGIApp, origins: Callable[[], Sequence[str]]) -> None:
        self._app, self._origins = app, origins
        self._shared: tuple[list[str], ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_of_page = scope["type"] == "http" and any(name == b"origin" for name, _ in scope["headers"])
        origins = list(self._origins()) if is_of_page and PASSED not in scope else []
        if not origins:
            await self._app(scope, receive, send)
            return
        if self._shared is None or self._shared[0] != origins:
            self._shared = origins, self._shared_with(origins)
        await self._shared[1]({**scope, PASSED: True}, receive, send)

    def _shared_with(self, origins: list[str]) -> ASGIApp:
        options: dict[str, Any] = {"allow_methods": ["GET", "HEAD", "POST"], "allow_headers": ["*"]}
        return CORSMiddleware(self._app, allow_origins=origins, expose_headers=SHOWN, **options)
