"""What a crowd of requests costs whoever passes them on: Ray's proxy in Python takes longer to pass one than we to
refuse it, so that it refuses what routers would have no place for, in the same words.

A request takes a place here from the arrival of its body to the beginning of its answer. RAILS_RAY_MAX_PASSED says how
many places there are, where `max_requests` or the number of routers is larger than usual.
"""

import os
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from rails_ray.web.access import Access, Guard
from rails_ray.web.limits import MAX_REQUESTS

VARIABLE = "RAILS_RAY_MAX_PASSED"
ANY_BODY = 2**40  # bytes: routers refuse what is too large for them
QUESTIONS = ("/v1/search", "/v1/explain", "/v1/feedback")


class Crowd:
    """An ASGI application in front of another: it guards our questions, whatever prefix they have, and nothing else."""

    def __init__(self, app: ASGIApp) -> None:
        access = Access(None, ANY_BODY, int(os.environ.get(VARIABLE, MAX_REQUESTS)))
        self._app, self._guarded = app, Guard(app, lambda: access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own: Any = self._guarded if scope["type"] == "http" and scope["path"].endswith(QUESTIONS) else self._app
        await own(scope, receive, send)
