"""Middlewares that a request passes before it is parsed, one for each concern: its key, the rate of that, its body,
and a place.

`AdmissionControl` holds our questions to them in front of Ray's proxy in Python, and of Serve's own layers in a router,
which take longer to pass a request on than we to refuse it.
"""

import re
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from rails_ray.serving.http.access import Access, KeyCheck, RateLimit
from rails_ray.serving.http.asgi import ACCESS, Receive, Refusal, Scope, Send, refuse
from rails_ray.serving.http.bodies import BodyLimit
from rails_ray.serving.http.places import Places
from rails_ray.serving.http.request_ids import RequestIds

# Paths of the routes, each after any prefix.
QUESTIONS = ("/v1/search", "/v1/explain", "/v1/feedback", "/v1/items", "/v1/embeddings", "/v2/models/{name}/infer")
_ENDS = {path: re.compile(re.sub(r"{\w+}", "[^/]+", path) + r"\Z") for path in QUESTIONS}


class Admission:
    """An ASGI application in front of another. What has passed the same rules in this process already goes through.

    Args:
        access: called for each request, because keys can change.
        on_refusal: called with the scope and the status of each refusal.
    """

    def __init__(
        self,
        app: Any,
        access: Callable[[], Access],
        clock: Callable[[], float] = time.monotonic,
        on_refusal: Callable[[Scope, int], None] = lambda scope, status: None,
    ) -> None:
        self._app, self._access, self._on_refusal = app, access, on_refusal
        self.places = Places(app, self._refuse, clock)
        self.bodies = BodyLimit(self.places, self._refuse)
        self._first = KeyCheck(RateLimit(self.bodies, self._refuse, clock), self._refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: nothing here answers it, so close it before it opens
            await send({"type": "websocket.close", "code": 1008})
            return
        access = self._access()
        if scope.get(ACCESS) is access:
            await self._app(scope, receive, send)
        else:
            await self._first({**scope, ACCESS: access}, receive, send)

    async def _refuse(self, scope: Scope, send: Send, refusal: Refusal) -> None:
        self._on_refusal(scope, refusal.status)
        await refuse(send, refusal)


class AdmissionControl:
    """An ASGI application in front of another: it guards our questions, whatever prefix they have, and nothing else.

    Args:
        access: called for each question: who gets in, and how many at once.
        on_refusal: called with one of `QUESTIONS` and the status of a refusal.
    """

    def __init__(self, app: ASGIApp, access: Callable[[], Access], on_refusal: Callable[[str, int], None]) -> None:
        def refused(scope: Any, status: int) -> None:
            question = question_of(scope["path"])
            assert question is not None
            on_refusal(question, status)

        admitted: Any = Admission(app, access, on_refusal=refused)
        self._app, self._guarded = app, RequestIds(admitted, on_answer=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_guarded = scope["type"] == "http" and question_of(scope["path"]) is not None
        own: Any = self._guarded if is_guarded else self._app
        await own(scope, receive, send)


def question_of(path: str) -> str | None:
    """Which of `QUESTIONS` a path is; None if it is none."""
    return next((question for question, ends in _ENDS.items() if ends.search(path)), None)
