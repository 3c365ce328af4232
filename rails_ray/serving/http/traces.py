"""Traces of requests in OpenTelemetry, if the usual variables name a collector.

A request is a span, a child of its client's (`traceparent`), and the stages of a search are its children. Where
OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not set, OTEL_SDK_DISABLED is true or
OTEL_TRACES_EXPORTER is none, there are none. Spans go over HTTP. No span names a query.
"""

import logging
import os
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from rails_ray.serving.http.request_ids import HEADER
from rails_ray.serving.stages import NAMES, Stages

SERVICE, UNNAMED = "rails-ray", "unknown_service"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
MISSING = (
    "traces need the packages of `pip install 'rails-ray[traces]'`, got none: requests are answered and not traced"
)

_tracer: ContextVar[Any] = ContextVar("tracer", default=None)  # of the request that is answered
log = logging.getLogger("rails_ray.serving.http")


class Traced:
    """An ASGI application in front of another."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._tracer = app, None  # starlette makes this in the process that answers: no provider is pickled
        if is_asked_for(os.environ):
            self._app, self._tracer = _traced(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _tracer.set(self._tracer)
        await self._app(scope, receive, send)


def is_asked_for(environment: Mapping[str, str]) -> bool:
    """Return whether the variables name a collector."""
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    is_disabled |= environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"
    return not is_disabled and any(environment.get(name) for name in ENDPOINTS)


def _traced(app: ASGIApp) -> tuple[ASGIApp, Any]:
    """The application with a span for each request, and what makes further spans."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.error(MISSING)
        return app, None
    resource = Resource.create()  # of the variables
    if str(resource.attributes["service.name"]).startswith(UNNAMED):
        resource = resource.merge(Resource({"service.name": SERVICE}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    def name_request(span: Any, scope: Scope) -> None:
        given = dict(scope["headers"]).get(HEADER)
        if span.is_recording() and given is not None:
            span.set_attribute("rails_ray.request_id", given.decode("latin-1")[:128])

    traced: ASGIApp = OpenTelemetryMiddleware(
        app, tracer_provider=provider, server_request_hook=name_request, exclude_spans=["receive", "send"]
    )
    return traced, provider.get_tracer(SERVICE)


def show_stages(stages: Stages) -> None:
    """Make the stages of a search that has just ended children of the request's span, one after the other."""
    tracer = _tracer.get()
    if tracer is None:
        return
    shown = [name for name in NAMES if name in stages]
    begins = time.time_ns() - round(1e9 * sum(stages[name] for name in shown))
    for name in shown:
        ends = begins + round(1e9 * stages[name])
        tracer.start_span(name, start_time=begins).end(ends)
        begins = ends
