"""Each request has an id, the client's own or a new one; the answer carries it, and so does what is logged about it.
Each answer is counted and logged with its id: 5xx as WARNING, others as INFO. The application finds the id in the
request."""

import logging
import random
import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
KNOWN = re.compile(rb"[!-~]{1,128}")  # what may stand in a header and in a log

log = logging.getLogger("rails_ray.serving.http")
_ids = random.Random()  # of its own: a seed of the module's would repeat them
current_id = ContextVar("current_id", default="")  # of the request that is answered


class RequestIds:
    """An ASGI application in front of another.

    Args:
        on_answer: called with the scope and the status of each answer; None if the application counts and logs.
    """

    def __init__(self, app: ASGIApp, on_answer: Callable[[Scope, int], None] | None) -> None:
        self._app = app
        self._on_answer = on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER), b"")
        own = given if KNOWN.fullmatch(given) else b"%032x" % _ids.getrandbits(128)
        if own is not given:
            others: list[Any] = [pair for pair in scope["headers"] if pair[0] != HEADER]
            scope = {**scope, "headers": [*others, (HEADER, own)]}

        current_id.set(own.decode())
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                others: list[Any] = [pair for pair in message["headers"] if pair[0].lower() != HEADER]
                message = {**message, "headers": [*others, (HEADER, own)]}
                self._note(scope, message["status"], own)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:  # whatever it is, it goes on to starlette, which answers 500 outside of this
            if not has_begun:
                self._note(scope, 500, own)
            raise

    def _note(self, scope: Scope, status: int, own: bytes) -> None:
        if self._on_answer is None:
            return
        self._on_answer(scope, status)
        line = scope["method"], scope["path"][:100], status, own.decode()
        log.log(logging.WARNING if status >= 500 else logging.INFO, "%s %r got %d (request %s)", *line)
