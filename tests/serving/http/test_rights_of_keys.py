"""What a key opens, and how often."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx

from rails_ray.serving.http.access import FOR_ADMINS, Access
from rails_ray.serving.http.admission import Admission
from rails_ray.serving.http.keys import Key, Keys

KEY, OTHER = "k" * 20, "o" * 20
LIMIT, MOST = 100, 2


async def welcome(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_a_key_opens_what_its_scope_says() -> None:
    known = Keys(
        (replace(Key.of(KEY), scopes=frozenset({"search"})), replace(Key.of(OTHER), scopes=frozenset({"admin"})))
    )
    access = Access(known, LIMIT, MOST)

    def status(key: str, method: str, path: str) -> int:
        headers = [(b"authorization", f"Bearer {key}".encode())]
        _, refusal = access.key_of({"headers": headers, "method": method, "path": path})
        return 200 if refusal is None else refusal.status

    for path in FOR_ADMINS:
        assert (status(KEY, "GET", path), status(OTHER, "GET", path)) == (403, 200)
    for method, path in [("POST", "/v1/search"), ("GET", "/v1/index"), ("GET", "/v1/nothing")]:
        assert (status(KEY, method, path), status(OTHER, method, path)) == (200, 403)
    _, refusal = access.key_of(
        {"headers": [(b"authorization", f"Bearer {KEY}".encode())], "method": "GET", "path": "/docs"}
    )
    assert refusal is not None
    assert refusal.message == "the bearer key must have the scope admin for this path, got one for search"


def test_a_key_has_a_rate() -> None:
    now = [100.0]
    access = Access(Keys((replace(Key.of(KEY), rate=2.0), Key.of(OTHER))), LIMIT, 100)
    guard = Admission(welcome, lambda: access, lambda: now[0])

    async def ask(key: str, count: int) -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://server") as client:
            return [await client.post("/", headers={"authorization": f"Bearer {key}"}) for _ in range(count)]

    def statuses(key: str, count: int) -> list[int]:
        return [response.status_code for response in asyncio.run(ask(key, count))]

    assert statuses(KEY, 3) == [200, 200, 429]
    assert statuses(OTHER, 9) == [200] * 9
    now[0] += 0.5
    assert statuses(KEY, 2) == [200, 429]
    now[0] += 60
    assert statuses(KEY, 3) == [200, 200, 429]
    [refused] = asyncio.run(ask(KEY, 1))
    assert refused.headers["retry-after"] == "1"
    assert refused.json() == {"error": "this key may make 2 requests a second of a router, got more: ask again in 1 s"}
