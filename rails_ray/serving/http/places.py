"""The number of requests that are answered at once.

A slow body takes no place. If all places are taken, a request is refused at once. Its Retry-After is the seconds that
the last answer took: by then a place should be free. A place is free again when its answer begins, so slow readers hold
none.
"""

import math
from collections.abc import Callable
from typing import Any

from rails_ray.serving.http.access import Access
from rails_ray.serving.http.asgi import ACCESS, Receive, Refusal, Refuse, Scope, Send

LONGEST_RETRY_S = 30  # Serve's own limit for a request


class Places:
    """Middleware: gives each POST and DELETE a place, or refuses it.

    num_inside: requests that hold a place.
    last_s: duration of the last answer.
    """

    def __init__(self, app: Any, refuse: Refuse, clock: Callable[[], float]) -> None:
        self._app, self._refuse, self._clock = app, refuse, clock
        self.num_inside = 0
        self.last_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access: Access = scope[ACCESS]
        if scope["method"] not in ("POST", "DELETE"):  # cheap, and includes the health check
            await self._app(scope, receive, send)
        elif self.num_inside >= access.max_requests:
            await self._refuse(scope, send, self._busy(access))
        else:
            await self._inside(scope, receive, send)

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

    def _busy(self, access: Access) -> Refusal:
        seconds = min(max(1, math.ceil(self.last_s)), LONGEST_RETRY_S)
        return Refusal(
            429,
            f"at most {access.max_requests} requests are answered at once, got one more: ask again in {seconds} s",
            ((b"retry-after", str(seconds).encode()),),
        )
