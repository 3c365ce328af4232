"""Headers that come slowly: the protocol that Serve's proxies and routers are told to use, over real sockets."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from rails_ray.serving.http import header_timeout as slow_headers
from support.ports import free_port

PATIENCE_S = 0.5


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a server with the protocol of this process, as Ray starts one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slow_headers, "HEADERS_S", PATIENCE_S)
        patch.setitem(slow_headers.HTTP_PROTOCOLS, "auto", slow_headers.HTTP_PROTOCOLS["auto"])
        slow_headers.bound()
        port = free_port()
        server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_level="critical"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)  # uvicorn tells nobody
        yield port
        server.should_exit = True
        thread.join()


def seconds_until_closed(port: int, sent: bytes, drip: bytes = b"") -> tuple[float, bytes]:
    """How long the server bears a client that sends so much, and then a byte every tenth of a second."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(0.1)
        connection.sendall(sent)
        began, received = time.monotonic(), b""
        while time.monotonic() - began < 10:
            try:
                piece = connection.recv(1000)
                if not piece:
                    return time.monotonic() - began, received
                received += piece
            except TimeoutError:
                connection.sendall(drip)
            except OSError:
                break
        return time.monotonic() - began, received


@pytest.mark.parametrize(
    ("sent", "drip"), [(b"", b""), (b"POST / HTTP/1.1\r\nhost: x\r\n", b""), (b"GET / HTTP/1.1\r\nx: ", b"y")]
)
def test_a_connection_whose_headers_do_not_come_is_closed(port: int, sent: bytes, drip: bytes) -> None:
    seconds, received = seconds_until_closed(port, sent, drip)
    assert PATIENCE_S / 2 < seconds < 5
    assert received.startswith(b"HTTP/1.1 408 ")


def test_later_headers_of_a_connection_must_come_in_time_as_well(port: int) -> None:
    seconds, received = seconds_until_closed(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\n", b"")
    assert PATIENCE_S / 2 < seconds < 5
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in received


def test_headers_in_time_are_answered_however_long_the_body_takes(port: int) -> None:
    def slowly() -> Iterator[bytes]:
        for _ in range(3):
            yield b"x"
            time.sleep(PATIENCE_S / 2)  # the slow body is the fault

    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        assert client.post("/", content=slowly()).text == "ok"
        time.sleep(2 * PATIENCE_S)  # a connection that is kept is no slow one
        assert client.get("/").text == "ok"


class Transport:
    """Notes what is written to it."""

    def __init__(self) -> None:
        self.written, self.is_closed = list[bytes](), False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str) -> None:
        return None

    pause_reading = resume_reading = lambda self: None


def written_by(answer: Any, *requests: bytes) -> Transport:
    async def scenario() -> Transport:
        transport = Transport()
        config = uvicorn.Config(answer, lifespan="off", log_level="critical")
        config.load()
        protocol: Any = slow_headers.HeaderTimeoutProtocol(config, ServerState(), {})
        protocol.connection_made(transport)
        for request in requests:
            protocol.data_received(request)
        for _ in range(10):
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        return transport

    return asyncio.run(scenario())


GET = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


def test_the_headers_of_an_answer_are_written_with_its_body() -> None:
    [one] = written_by(app, GET).written
    assert one.startswith(b"HTTP/1.1 200 OK\r\n")
    assert one.endswith(b"\r\n\r\nok")
    [head] = written_by(app, GET.replace(b"GET", b"HEAD")).written
    assert head.endswith(b"\r\n\r\n")
    assert len(written_by(app, GET + GET, GET).written) == 3


def test_what_must_not_wait_for_a_body_does_not() -> None:
    asks = b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
    first, answer = written_by(app, asks, b"{}").written
    assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.endswith(b"ok")

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    one, two = written_by(stream, GET).written
    assert one.endswith(b"\r\n\r\n3\r\none\r\n")
    assert two == b"3\r\ntwo\r\n0\r\n\r\n"


def test_an_answer_that_fails_after_its_headers_is_closed() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        raise ValueError

    transport = written_by(failing, GET)
    assert transport.is_closed
    [head] = transport.written
    assert head.endswith(b"\r\n\r\n")
