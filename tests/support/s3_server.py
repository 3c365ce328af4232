"""An S3 server in a process of its own, and a proxy in front of it that fails the way networks and servers do."""

import http.client
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

# S3 decides on a conditional write and carries it out in one go. moto first looks and then writes: one at a time.
SERVER = """
import sys
from threading import Event, Lock
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import ThreadedMotoServer
answer, one_at_a_time = DomainDispatcherApplication.__call__, Lock()
def answer_in_one_go(self, environ, start_response):
    if environ.keys() & {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"}:
        with one_at_a_time:
            return answer(self, environ, start_response)
    return answer(self, environ, start_response)
DomainDispatcherApplication.__call__ = answer_in_one_go
server = ThreadedMotoServer(sys.argv[1], 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
Event().wait()
"""
SECRET = "sEcReT-kEy-0123456789"
KEY_ID = "AKIDNOBODYSHOULDSEE"


@contextmanager
def s3_server_process(host: str = "127.0.0.1") -> Iterator[str]:
    """moto's server, until the block ends; its URL. It checks no signatures and lists ten keys at once, not 1000."""
    command = [sys.executable, "-W", "ignore", "-c", SERVER, host]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"moto's server must start, got exit status {process.wait()}")
        yield f"http://{host}:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()


def use_s3(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """The environment in which botocore finds the server and credentials, and nothing of the machine's own."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere/config",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere/credentials",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)


def new_bucket(endpoint: str) -> str:
    """The name of an empty bucket."""
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")):
        return bucket


Fault = Callable[["_Handler", Callable[[], http.client.HTTPResponse]], None]


class FaultyProxy:
    """Hands requests on to a server. A fault that is put in front takes the place of the next requests of a method."""

    def __init__(self, server: str) -> None:
        self.server = urlsplit(server).netloc
        self.ignores_conditions = self.ignores_conditions_after_delete = False
        self._refused: tuple[frozenset[str], Fault] | None = None
        self.requests: list[tuple[str, str]] = []
        self._faults: dict[str, list[Fault]] = {}
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> "FaultyProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def fail(self, method: str, fault: Fault, times: int = 1) -> None:
        self._faults.setdefault(method, []).extend([fault] * times)

    def refuse(self, fault: Fault, *headers: str) -> None:
        """Put a fault in the place of each request that has one of these headers; the last call counts."""
        self._refused = frozenset(headers), fault

    def count(self, method: str) -> int:
        return sum(seen == method for seen, _ in self.requests)

    def next_fault(self, method: str, path: str, headers: Iterable[str]) -> Fault | None:
        with self._lock:
            self.requests.append((method, path))
            self.ignores_conditions |= self.ignores_conditions_after_delete and method == "DELETE"
            if self._refused and not self._refused[0].isdisjoint(name.lower() for name in headers):
                return self._refused[1]
            faults = self._faults.get(method)
            return faults.pop(0) if faults else None


def answer(status: int, code: str) -> Fault:
    """An error of S3's own. Its text holds what no message may repeat."""

    def fault(handler: "_Handler", forward: Callable[[], http.client.HTTPResponse]) -> None:
        text = f"<Error><Code>{code}</Code><Message>of {KEY_ID} with {SECRET}</Message></Error>"
        handler.respond(status, {"Content-Type": "application/xml"}, text.encode())

    return fault


def delay(seconds: float) -> Fault:
    def fault(handler: "_Handler", forward: Callable[[], http.client.HTTPResponse]) -> None:
        time.sleep(seconds)  # the fault itself
        handler.pass_on(forward())

    return fault


def drop(handler: "_Handler", forward: Callable[[], http.client.HTTPResponse]) -> None:
    """The server never hears of it."""
    handler.close_connection = True


def lose_answer(handler: "_Handler", forward: Callable[[], http.client.HTTPResponse]) -> None:
    """The server has done it, and nobody is told."""
    forward().read()
    handler.close_connection = True


def cut_answer(handler: "_Handler", forward: Callable[[], http.client.HTTPResponse]) -> None:
    """Headers and half of the bytes."""
    response = forward()
    body = response.read()
    handler.respond(response.status, dict(response.getheaders()), body, sent=len(body) // 2)
    handler.close_connection = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        conditions = ("if-match", "if-none-match")
        headers = {
            name: value
            for name, value in self.headers.items()
            if not (self.proxy.ignores_conditions and name.lower() in conditions) and name.lower() != "expect"
        }

        def forward() -> http.client.HTTPResponse:
            self.upstream = http.client.HTTPConnection(self.proxy.server, timeout=30)
            self.upstream.request(self.command, self.path, body, headers)
            return self.upstream.getresponse()

        fault = self.proxy.next_fault(self.command, self.path, self.headers)
        try:
            if fault:
                fault(self, forward)
            else:
                self.pass_on(forward())
        finally:  # also if the client gave up
            if hasattr(self, "upstream"):
                self.upstream.close()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _handle  # noqa: N815 (http.server looks for these names)

    def pass_on(self, response: http.client.HTTPResponse) -> None:
        self.respond(response.status, dict(response.getheaders()), response.read())

    def respond(self, status: int, headers: dict[str, str], body: bytes, sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        has_body = self.command != "HEAD"  # whose answer tells the length of a body that it lacks
        self.send_header("Content-Length", str(len(body)) if has_body else headers.get("Content-Length", "0"))
        self.end_headers()
        self.wfile.write(body[:sent])

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, BrokenPipeError):
            return  # a client that gave up

    def log_message(self, *_: object) -> None:
        return
