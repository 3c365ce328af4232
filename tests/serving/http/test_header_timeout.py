"""Headers that come slowly: the protocol that Serve's proxies and routers are told to use, over real sockets."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

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
