"""Types of ASGI and refusals, shared by the middlewares in front of the application."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]
ACCESS, KEY = "rails_ray.access", "rails_ray.key"  # in a scope: the rules that a request is held to, and its key


@dataclass(frozen=True)
class Refusal:
    """
    message: one sentence.
    headers: in addition to the headers of every refusal.
    """

    status: int
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


Refuse = Callable[[Scope, Send, Refusal], Awaitable[None]]


async def refuse(send: Send, refusal: Refusal) -> None:
    """Answer with a refusal."""
    headers = [(b"content-type", b"application/json"), *refusal.headers]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": refusal.message}).encode()})
