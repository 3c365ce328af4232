"""Traces, as a collector receives them."""

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from rails_ray.serving.http import traces
from rails_ray.serving.http.single import SingleProcessServer, listening
from rails_ray.serving.local import LocalVersion
from support.ports import free_port
from support.processes import wait_for

BODY = {"queries": [{"text": "a secret"}], "k": 3, "cutoff": {"top_k": 3}}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Takes what OTLP's exporters send."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.received = list[ResourceSpans]()

    @property
    def spans(self) -> dict[str, Span]:
        return {span.name: span for own in self.received for scope in own.scope_spans for span in scope.spans}


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received += ExportTraceServiceRequest.FromString(body).resource_spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield server
        server.shutdown()


def test_a_search_is_a_span_of_its_clients_trace_and_its_stages_are_spans(
    version: LocalVersion, collector: Collector
) -> None:
    port = free_port()
    with listening(SingleProcessServer(version), port=port):
        url = f"http://127.0.0.1:{port}/v1/search"
        answer = httpx.post(url, json=BODY, headers={"traceparent": PARENT, "x-request-id": "mine-7"})
        wait_for(lambda: len(collector.spans) >= 5)
    spans, stages = collector.spans, answer.headers["server-timing"].split(", ")
    request = spans.pop("POST /v1/search")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == tuple(PARENT.split("-")[1:3])
    assert {own.key: own.value.string_value for own in request.attributes}["rails_ray.request_id"] == "mine-7"
    assert spans.keys() == {stage.partition(";")[0] for stage in stages}
    ends = request.start_time_unix_nano
    for stage in stages:
        name, _, milliseconds = stage.partition(";dur=")
        span = spans[name]
        assert span.parent_span_id == request.span_id
        assert span.end_time_unix_nano - span.start_time_unix_nano == pytest.approx(1e6 * float(milliseconds), abs=1e4)
        assert span.start_time_unix_nano >= ends - 1_000_000
        ends = span.end_time_unix_nano
    assert ends <= request.end_time_unix_nano
    [resource] = {own.resource.attributes[-1].value.string_value for own in collector.received} & {"rails-ray"} or [""]
    assert resource == "rails-ray"
    assert b"secret" not in b"".join(own.SerializeToString() for own in collector.received)


def test_a_request_without_an_id_is_traced_by_the_one_that_it_gets(
    version: LocalVersion, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine")
    port = free_port()
    with listening(SingleProcessServer(version), port=port):
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/search", json=BODY, headers={"x-request-id": "not one"})
        wait_for(lambda: "POST /v1/search" in collector.spans)
    told = {own.key: own.value.string_value for own in collector.spans["POST /v1/search"].attributes}
    assert told["rails_ray.request_id"] == answer.headers["x-request-id"] != "not one"
    assert {own.value.string_value for one in collector.received for own in one.resource.attributes} >= {"mine"}


def test_a_collector_that_is_gone_costs_no_answer(version: LocalVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    port = free_port()
    with listening(SingleProcessServer(version), port=port):
        assert httpx.post(f"http://127.0.0.1:{port}/v1/search", json=BODY).status_code == 200


@pytest.mark.parametrize(
    ("environment", "is_asked_for"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://there"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there", "OTEL_SDK_DISABLED": "True"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there", "OTEL_TRACES_EXPORTER": "otlp"}, True),
    ],
)
def test_when_there_are_traces(environment: dict[str, str], is_asked_for: bool) -> None:
    assert traces.is_asked_for(environment) == is_asked_for


def test_without_the_packages_requests_are_answered_and_the_log_says_why(
    version: LocalVersion, collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.asgi", None)
    port = free_port()
    with listening(SingleProcessServer(version), port=port):
        assert httpx.post(f"http://127.0.0.1:{port}/v1/search", json=BODY).status_code == 200
    assert caplog.messages.count(traces.MISSING) == 1
