"""Questions beyond the places that there are, refused before anything else is done with them: Ray's proxy in Python,
and Serve's own layers in a router, take longer to pass a request on than we to refuse it.

A request takes a place from the arrival of its body to the beginning of its answer.
"""

import re
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from rails_ray.serving.http.access import Access, Guard
from rails_ray.serving.http.request_ids import RequestIds

# Paths of the routes, each after any prefix.
QUESTIONS = ("/v1/search", "/v1/explain", "/v1/feedback", "/v1/embeddings", "/v2/models/{name}/infer")
_ENDS = {path: re.compile(re.sub(r"{\w+}", "[^/]+", path) + r"\Z") for path in QUESTIONS}


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

        guard: Any = Guard(app, access, on_refusal=refused)
        self._app, self._guarded = app, RequestIds(guard, on_answer=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_guarded = scope["type"] == "http" and question_of(scope["path"]) is not None
        own: Any = self._guarded if is_guarded else self._app
        await own(scope, receive, send)


def question_of(path: str) -> str | None:
    """Which of `QUESTIONS` a path is; None if it is none."""
    return next((question for question, ends in _ENDS.items() if ends.search(path)), None)
