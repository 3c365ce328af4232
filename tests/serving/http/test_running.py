"""A server in a thread: its event loop, and what is cancelled at its end is refused."""

import asyncio
import socket
import threading
from typing import Any

import httpx
import pytest
import uvloop

from rails_ray.serving.http.running import RefusesAtEnd, running
from support.ports import free_port

HTTP = {"type": "http"}


def cancelled(app: Any) -> list[dict[str, Any]]:
    """Cancel a request while the application waits, and return what the application sends."""
    sent = list[dict[str, Any]]()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def scenario() -> None:
        task = asyncio.create_task(RefusesAtEnd(app)(HTTP, send, send))
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(scenario())
    return sent


def test_a_request_that_is_cancelled_is_refused() -> None:
    async def waits(*_: Any) -> None:
        await asyncio.Event().wait()

    start, body = cancelled(waits)
    assert start["status"] == 503
    assert {(b"retry-after", b"1"), (b"connection", b"close")} <= {*start["headers"]}
    assert b"the server must run to answer, got a signal to stop" in body["body"]


def test_an_answer_that_has_begun_ends_as_it_is() -> None:
    async def begins(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        cancelled(begins)


def test_its_event_loop_is_that_of_uvloop() -> None:
    loops = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        loops.append(asyncio.get_running_loop())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    port = free_port()
    with running(app, host="127.0.0.1", port=port):
        assert httpx.get(f"http://127.0.0.1:{port}/").text == "ok"
    assert [type(own) for own in loops] == [uvloop.Loop]


def test_what_is_to_be_done_at_its_start_is_done_before_it_listens() -> None:
    port, noted = free_port(), list[tuple[str, bool]]()

    def look() -> None:
        with socket.socket() as probe:
            noted.append((threading.current_thread().name, probe.connect_ex(("127.0.0.1", port)) == 0))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    with running(app, host="127.0.0.1", port=port, at_start=look):
        assert noted == [("server", False)]
