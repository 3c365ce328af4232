"""Google's dialect in front of moto: paths that are encoded as one word, and generations in place of entity tags.

No server of Google Cloud Storage installs from PyPI, npm or Debian that knows HEAD and generations. What obstore sends
is Google's XML API, whose requests, lists and uploads in parts are those of S3 but for these two things.

Source: https://cloud.google.com/storage/docs/xml-api/reference-headers.
"""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit

import pytest

GENERATION, CONDITION = "x-goog-generation", "x-goog-if-generation-match"
NOT_PASSED_ON = {CONDITION, "x-goog-copy-source", "authorization", "host", "connection"}
SIGNED = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
REFUSED = b"<Error><Code>PreconditionFailed</Code><Message>of a generation</Message></Error>"


class _Dialect(BaseHTTPRequestHandler):
    """Hands a request on as S3 has it, and its answer back with the generation of the object."""

    protocol_version = "HTTP/1.1"
    upstream: str
    generations: dict[str, int]
    writing: threading.Lock

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket, _, key = urlsplit(self.path).path.lstrip("/").partition("/")
        path, query = f"/{unquote(bucket)}/{quote(unquote(key))}".rstrip("/"), urlsplit(self.path).query
        if self.command in ("GET", "HEAD"):
            self._answer(*self._passed_on(path, query, body), path)
            return
        with self.writing:  # Google decides on a condition and carries it out in one go
            wanted = self.headers.get(CONDITION)
            if wanted is not None and int(wanted) != self.generations.get(path, 0):
                self._answer(412, {"Content-Type": "application/xml"}, REFUSED, path)
                return
            status, headers, answer = self._passed_on(path, query, body)
            if status < 300 and self.command == "DELETE" and not query:
                self.generations.pop(path, None)
            elif status < 300 and "partNumber" not in query and "uploads" not in query:
                _Dialect.last += 1
                self.generations[path] = _Dialect.last
            self._answer(status, headers, answer, path)

    last = 1_700_000_000_000_000  # generations of Google are of this size

    def _passed_on(self, path: str, query: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON}
        headers["Authorization"] = SIGNED
        source = self.headers.get("x-goog-copy-source")
        if source is not None:
            headers["x-amz-copy-source"] = quote(unquote(source))
        upstream = http.client.HTTPConnection(self.upstream, timeout=30)
        try:
            upstream.request(self.command, f"{path}?{query}" if query else path, body, headers)
            answer = upstream.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, path: str) -> None:
        self.send_response(status)
        left_out = {"content-length", "transfer-encoding", "connection", "date", "server"}
        for name, value in headers.items():
            if name.lower() not in left_out:
                self.send_header(name, value)
        if path in self.generations:
            self.send_header(GENERATION, str(self.generations[path]))
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _handle  # noqa: N815 (http.server looks for these names)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def google_server_before(s3_server: str) -> Iterator[str]:
    """The URL of a server that speaks to obstore as Google's does, until the block ends; its objects are moto's."""
    fields = {"upstream": urlsplit(s3_server).netloc, "generations": {}, "writing": threading.Lock()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Dialect", (_Dialect,), fields))
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_google(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The environment in which obstore finds the server, by the key of an account that names it."""
    account = {"gcs_base_url": url, "disable_oauth": True} | dict.fromkeys(
        ("client_email", "private_key", "private_key_id"), ""
    )
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
