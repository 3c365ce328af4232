"""Keys and sizes, before a request comes in: the guard before a small application, over HTTP without a network."""

import asyncio
import hmac
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rails_ray.on_ray.serving import access as guard
from rails_ray.on_ray.serving.access import Access, Guard, Keys

KEY, OTHER = "k" * 20, "o" * 20
LIMIT = 100


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


def ask(access: Access, body: Any = b"", headers: dict[str, str] | None = None) -> tuple[httpx.Response, int]:
    """The answer, and how many requests came in to the application."""
    echo = Echo()

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(Guard(echo, lambda: access))
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
    response, num_asked = ask(Access(Keys([KEY, OTHER]), LIMIT), b"body", headers)
    assert (response.status_code, response.json()) == (status, {"error": message})
    assert num_asked == 0
    assert ("www-authenticate" in response.headers) == (status == 401)


@pytest.mark.parametrize("word", ["Bearer", "bearer"])
@pytest.mark.parametrize("key", [KEY, OTHER])
def test_a_request_with_one_of_the_keys_comes_in_whole(word: str, key: str) -> None:
    response, num_asked = ask(Access(Keys([KEY, OTHER]), LIMIT), b"a body", {"authorization": f"{word} {key}"})
    assert (response.status_code, response.content, num_asked) == (200, b"a body", 1)


def test_no_keys_let_everyone_in() -> None:
    assert ask(Access(None, LIMIT), b"x")[0].status_code == 200


def test_none_a_wrong_and_a_right_key_cost_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    access = Access(Keys([KEY, OTHER, "third-" * 5]), LIMIT)
    for value in (b"", b"Bearer wrong", f"Bearer {KEY}".encode(), f"Bearer {OTHER}".encode()):
        compared.clear()
        access.refusal([(b"authorization", value)])
        assert compared == [(32, 32)] * 3  # each of the three keys, as SHA-256 of 32 bytes


def test_a_body_that_says_that_it_is_too_large_is_refused_unread() -> None:
    response, num_asked = ask(Access(None, LIMIT), b"x" * (LIMIT + 1))
    assert (response.status_code, num_asked) == (413, 0)
    assert response.json() == {"error": "the body must have at most 100 bytes, got 101: ask fewer queries at once"}
    assert ask(Access(None, LIMIT), b"x" * LIMIT)[0].content == b"x" * LIMIT


def test_a_body_in_pieces_is_refused_when_they_become_too_many() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"y" * 30

    response, num_asked = ask(Access(None, LIMIT), pieces())
    assert (response.status_code, num_asked) == (413, 0)
    assert response.json() == {"error": "the body must have at most 100 bytes, got 120: ask fewer queries at once"}


def test_of_two_keys_none_counts() -> None:
    """A proxy in front may have judged the other one."""
    access = Access(Keys([KEY]), LIMIT)
    header = (b"authorization", f"Bearer {KEY}".encode())
    assert access.refusal([header]) is None
    assert access.refusal([header, (b"authorization", b"Bearer other")]) == access.refusal([])
    assert access.refusal([(b"authorization", b"Bearer other"), header]) == access.refusal([])


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_S", 0.05)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"y"
        await asyncio.Event().wait()

    response, num_asked = ask(Access(None, LIMIT), pieces())
    assert (response.status_code, num_asked) == (408, 0)
    assert response.json() == {"error": "the body must be sent within 0.05 s, got a part of it"}


def test_a_websocket_is_closed_before_it_opens() -> None:
    echo, sent = Echo(), list[dict[str, Any]]()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(Guard(echo, lambda: Access(None, LIMIT))({"type": "websocket", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert echo.num_asked == 0


def test_the_key_is_asked_for_before_the_size_is_told() -> None:
    assert ask(Access(Keys([KEY]), LIMIT), b"x" * 1000)[0].status_code == 401


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# for the shop\n{KEY}\n\n  {OTHER}  \n")
    keys = Keys.read(str(file))
    assert keys.hold(KEY.encode())
    assert keys.hold(OTHER.encode())
    assert not keys.hold(b"# for the shop")
    assert not keys.hold(b"")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"keys_file must be a text file of ASCII keys, got .*keys: .*No such file"),
        (b"\xff\xfe" * 20, r"keys_file must be a text file of ASCII keys, got .*keys: 'ascii' codec"),
        (b"# none\n\n", r"keys_file must hold at least 1 key, got none in .*keys"),
        (b"# ours\nshort\n", r"line 2 of .*keys must be a key of at least 16 characters, got 5"),
    ],
)
def test_a_file_that_holds_no_keys_is_told(content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Keys.read(str(file))
