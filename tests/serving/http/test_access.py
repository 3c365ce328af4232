"""Keys and sizes, before a request comes in: the guard before a small application, over HTTP without a network."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from rails_ray.serving.http import bodies
from rails_ray.serving.http.access import NOBODY_GETS_IN, Access
from rails_ray.serving.http.admission import Admission
from rails_ray.serving.http.asgi import Refusal
from rails_ray.serving.http.keys import NOBODY, Key, Keys

KEY, OTHER = "k" * 20, "o" * 20
LIMIT, MOST = 100, 2


class Echo:
    """An application that answers with the body, and counts how often it is asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.num_asked += 1
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


def request(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"method": "POST", "path": "/", "headers": headers}


def ask(access: Access, body: Any = b"", headers: dict[str, str] | None = None) -> tuple[httpx.Response, int]:
    """The answer, and how many requests came in to the application."""
    echo = Echo()

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(Admission(echo, lambda: access))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post("/", content=body, headers=headers)

    return asyncio.run(post()), echo.num_asked


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({}, 401, "a request must have the header `Authorization: Bearer KEY`, got none"),
        ({"authorization": ""}, 401, "a request must have the header `Authorization: Bearer KEY`, got none"),
        (
            {"authorization": f"Basic {KEY}"},
            401,
            "a request must have the header `Authorization: Bearer KEY`, got none",
        ),
        ({"authorization": f"Bearer {OTHER}x"}, 403, "the bearer key must be one that this server knows, got another"),
        (
            {"authorization": f"Bearer {KEY[:-1]}"},
            403,
            "the bearer key must be one that this server knows, got another",
        ),
    ],
)
def test_a_request_without_a_valid_key_does_not_come_in(headers: dict[str, str], status: int, message: str) -> None:
    response, num_asked = ask(Access(Keys.of([KEY, OTHER]), LIMIT, MOST), b"body", headers)
    assert (response.status_code, response.json()) == (status, {"error": message})
    assert num_asked == 0
    assert ("www-authenticate" in response.headers) == (status == 401)


@pytest.mark.parametrize("word", ["Bearer", "bearer"])
@pytest.mark.parametrize("key", [KEY, OTHER])
def test_a_request_with_one_of_the_keys_comes_in_whole(word: str, key: str) -> None:
    response, num_asked = ask(Access(Keys.of([KEY, OTHER]), LIMIT, MOST), b"a body", {"authorization": f"{word} {key}"})
    assert (response.status_code, response.content, num_asked) == (200, b"a body", 1)


def refusal_of(access: Access, scope: dict[str, Any]) -> Refusal | None:
    """Why a request does not get in by its headers."""
    return access.key_of(scope)[1] or access.too_long(dict(scope["headers"]))


def test_no_keys_let_everyone_in() -> None:
    assert ask(Access(None, LIMIT, MOST), b"x")[0].status_code == 200


def test_the_hash_of_nothing_opens_nothing() -> None:
    access = Access(Keys((Key.of(""), Key.of(KEY))), 100, 2)
    for headers in ([], [(b"authorization", b"Bearer ")]):
        refusal = refusal_of(access, {"method": "POST", "path": "/v1/search", "headers": headers})
        assert refusal is not None
        assert refusal.status == 401


def test_none_a_wrong_and_a_right_key_cost_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    access = Access(Keys.of([KEY, OTHER, "third-" * 5]), LIMIT, MOST)
    for value in (b"", b"Bearer wrong", f"Bearer {KEY}".encode(), f"Bearer {OTHER}".encode()):
        compared.clear()
        refusal_of(access, request((b"authorization", value)))
        assert compared == [(32, 32)] * 3  # each of the three keys, as SHA-256 of 32 bytes


def test_a_body_that_says_that_it_is_too_large_is_refused_unread() -> None:
    response, num_asked = ask(Access(None, LIMIT, MOST), b"x" * (LIMIT + 1))
    assert (response.status_code, num_asked) == (413, 0)
    assert response.json() == {"error": "the body must have at most 100 bytes, got 101: ask fewer queries at once"}
    assert ask(Access(None, LIMIT, MOST), b"x" * LIMIT)[0].content == b"x" * LIMIT


def test_a_body_in_pieces_is_refused_when_they_become_too_many() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"y" * 30

    response, num_asked = ask(Access(None, LIMIT, MOST), pieces())
    assert (response.status_code, num_asked) == (413, 0)
    assert response.json() == {"error": "the body must have at most 100 bytes, got 120: ask fewer queries at once"}


def test_of_two_keys_none_counts() -> None:
    """A proxy in front may have judged the other one."""
    access = Access(Keys.of([KEY]), LIMIT, MOST)
    header = (b"authorization", f"Bearer {KEY}".encode())
    assert refusal_of(access, request(header)) is None
    assert refusal_of(access, request(header, (b"authorization", b"Bearer other"))) == refusal_of(access, request())
    assert refusal_of(access, request((b"authorization", b"Bearer other"), header)) == refusal_of(access, request())


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.05)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"y"
        await asyncio.Event().wait()

    response, num_asked = ask(Access(None, LIMIT, MOST), pieces())
    assert (response.status_code, num_asked) == (408, 0)
    assert response.json() == {
        "error": "the body must arrive within 0.05 s (sooner when the server is busy), got only a part of it"
    }


def test_a_websocket_is_closed_before_it_opens() -> None:
    echo, sent = Echo(), list[dict[str, Any]]()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(Admission(echo, lambda: Access(None, LIMIT, MOST))({"type": "websocket", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert echo.num_asked == 0


def test_the_key_is_asked_for_before_the_size_is_told() -> None:
    assert ask(Access(Keys.of([KEY]), LIMIT, MOST), b"x" * 1000)[0].status_code == 401


def test_where_there_are_no_keys_nobody_comes_in_and_is_told_why() -> None:
    for headers in ({}, {"authorization": f"Bearer {KEY}"}):
        response, num_asked = ask(Access(NOBODY, LIMIT, MOST), b"body", headers)
        assert (response.status_code, num_asked) == (401, 0)
        assert response.json() == {"error": NOBODY_GETS_IN}


class Slow:
    """An application that answers when it is told to."""

    def __init__(self) -> None:
        self.num_inside = 0
        self.may_end = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.num_inside += 1
        await self.may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def endless() -> AsyncIterator[bytes]:
    yield b"y"
    await asyncio.Event().wait()


def test_a_request_for_which_there_is_no_place_is_refused_at_once_and_told_when_to_come_again() -> None:
    async def run() -> None:
        slow, now = Slow(), [0.0]
        app = Admission(slow, lambda: Access(None, LIMIT, MOST), clock=lambda: now[0])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            inside = [asyncio.create_task(client.post("/", content=b"x")) for _ in range(MOST)]
            while slow.num_inside < MOST:
                await asyncio.sleep(0)
            refused = await client.post("/", content=b"x")
            assert (refused.status_code, refused.headers["retry-after"], slow.num_inside) == (429, "1", MOST)
            assert refused.json() == {
                "error": "at most 2 requests are answered at once, got one more: ask again in 1 s"
            }
            now[0] = 2.5
            slow.may_end.set()
            assert [response.status_code for response in await asyncio.gather(*inside)] == [200] * MOST
            slow.may_end.clear()  # there is room again, and the last answer took 2.5 s
            inside = [asyncio.create_task(client.post("/", content=b"x")) for _ in range(MOST)]
            while slow.num_inside < 2 * MOST:
                await asyncio.sleep(0)
            assert (await client.post("/", content=b"x")).headers["retry-after"] == "3"
            health = asyncio.create_task(client.get("/v1/health"))  # is asked in any case
            while slow.num_inside < 2 * MOST + 1:
                await asyncio.sleep(0)
            for one in (*inside, health):
                one.cancel()

    asyncio.run(run())


def test_bodies_on_their_way_hold_no_place_and_the_oldest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_WAITING", 3)

    async def run() -> None:
        echo = Echo()
        app = Admission(echo, lambda: Access(None, LIMIT, MOST))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            slow = [asyncio.create_task(client.post("/", content=endless())) for _ in range(3)]
            while len(app.bodies.waiting) < 3:
                await asyncio.sleep(0)
            assert (await client.post("/", content=b"whole")).content == b"whole"
            first = await slow[0]
            assert first.status_code == 408
            assert first.headers["connection"] == "close"
            assert [one.done() for one in slow] == [True, False, False]
            for one in slow[1:]:
                one.cancel()

    asyncio.run(run())


def test_bodies_that_come_in_bursts_and_run_out_of_time_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are let go in the very moment in which their time is up."""
    monkeypatch.setattr(bodies, "MAX_WAITING", 3)
    monkeypatch.setattr(bodies, "BODY_S", 0.02)

    async def run() -> None:
        app = Admission(Echo(), lambda: Access(None, LIMIT, MOST))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            for pause_s in (0, 0, 0.005, 0.02):
                slow = []
                for _ in range(10):
                    slow.append(asyncio.create_task(client.post("/", content=endless())))
                    await asyncio.sleep(pause_s)
                    assert len(app.bodies.waiting) <= 3
                assert [response.status_code for response in await asyncio.gather(*slow)] == [408] * 10
                assert app.bodies.waiting == {}
            assert (await client.post("/", content=b"whole")).content == b"whole"

    asyncio.run(run())


def test_large_bodies_on_their_way_hold_no_more_than_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_WAITING_BYTES", 0)  # as many as one may have

    async def most() -> AsyncIterator[bytes]:
        yield b"y" * 60
        await asyncio.Event().wait()

    async def run() -> None:
        app = Admission(Echo(), lambda: Access(None, LIMIT, MOST))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            first, second = (asyncio.create_task(client.post("/", content=most())) for _ in range(2))
            assert (await first).status_code == 408
            assert list(app.bodies.waiting.values()) == [60]
            second.cancel()

    asyncio.run(run())


def test_a_reader_however_slow_holds_no_place() -> None:
    """The application is called as a server does it, as a transport of httpx reads without a pause."""
    may_read = asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await may_read.wait()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def run() -> None:
        app = Admission(Echo(), lambda: Access(None, LIMIT, MOST))
        scope = {"type": "http", "method": "POST", "headers": []}
        readers = [asyncio.create_task(app(scope, receive, send)) for _ in range(3 * MOST)]
        await asyncio.sleep(0.01)
        assert app.places.num_inside == 0
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            assert (await client.post("/", content=b"x")).status_code == 200
        may_read.set()
        await asyncio.gather(*readers)

    asyncio.run(run())


def test_what_is_refused_says_nothing_of_how_long_an_answer_takes() -> None:
    now = [0.0]

    async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
        now[0] += 5.0
        await send({"type": "http.response.start", "status": 422, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> None:
        app = Admission(answer, lambda: Access(None, LIMIT, MOST), clock=lambda: now[0])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            await client.post("/")
        assert app.places.last_s == 0

    asyncio.run(run())


def test_a_length_of_thousands_of_digits_is_too_large() -> None:
    refusal = refusal_of(Access(None, LIMIT, MOST), request((b"content-length", b"9" * 5000)))
    assert refusal is not None
    assert refusal.status == 413


def test_a_body_can_be_let_go_in_the_moment_in_which_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its timer has gone off, and before its task knows."""
    monkeypatch.setattr(bodies, "MAX_WAITING", 1)
    monkeypatch.setattr(bodies, "BODY_S", 0.02)

    async def run() -> None:
        access, outcome = Access(None, LIMIT, MOST), list[str]()
        app, loop = Admission(Echo(), lambda: access), asyncio.get_running_loop()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            slow = asyncio.create_task(client.post("/", content=endless()))
            while not app.bodies.waiting:
                await asyncio.sleep(0)
            (oldest,) = app.bodies.waiting

            def come() -> None:
                outcome.append(f"{oldest.expired()} {oldest in app.bodies.waiting}")
                app.bodies.wait_for(asyncio.timeout(1), 0, access)
                outcome.append(f"{oldest in app.bodies.waiting}")

            loop.call_at(oldest.when() + 1e-6, come)
            time.sleep(0.05)  # so that both timers are due in one turn of the loop
            assert (await slow).status_code == 408
            assert outcome == ["True True", "False"]

    asyncio.run(run())


def test_a_request_passes_the_rules_of_a_process_once() -> None:
    """Before Serve's own layers in a router, and not again in its application; what another process says counts not."""
    access = Access(Keys.of([KEY]), LIMIT, 1)
    inner, outer = Echo(), Echo()

    async def scenario() -> list[int]:
        second = Admission(inner, lambda: access)
        first = Admission(second, lambda: access)
        header = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(first), base_url="http://server") as client:
            found = [await client.post("/", content=b"x", headers=header), await client.post("/", content=b"x")]
        assert (first.places.num_inside, second.places.last_s) == (0, 0)
        elsewhere = Admission(outer, lambda: replace(access))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(Admission(elsewhere, lambda: Access(None, LIMIT, 1))),
            base_url="http://server",
        ) as client:
            found.append(await client.post("/", content=b"x"))
        return [response.status_code for response in found]

    assert asyncio.run(scenario()) == [200, 401, 401]
    assert (inner.num_asked, outer.num_asked) == (1, 0)
