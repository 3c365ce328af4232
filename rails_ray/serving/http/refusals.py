"""Refusals: how a body is read, and the status and message of each refusal.

A body is JSON in UTF-8, whatever its header says, unless it says Arrow's stream format and the route reads that. A body
that is neither, or that does not fit the request, gets 422: one status for everything that a client must write
differently. A compressed one gets 415, at which some clients send it again as it is.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rails_ray.schema.fields import shortened
from rails_ray.schema.responses import ErrorResponse
from rails_ray.serving.http import arrow
from rails_ray.serving.http.json_bodies import read_json, unreadable
from rails_ray.serving.validation_messages import sentence

LONGEST_SENTENCE = 1000  # characters; our own messages quote less, but others may not
IN_ARROW = ("/v1/search",)  # routes that read such a body


def install(api: FastAPI) -> None:
    """Make the application refuse this way, on routes that are added after this call."""
    api.router.route_class = _JsonRoute
    api.router.redirect_slashes = False  # a redirect would lead to whatever host the request names
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _refused)
    api.add_middleware(_HeadAsGet)


def refused_with(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries for these statuses."""
    return {status: {"model": ErrorResponse} for status in statuses}


def _path(scope: Any) -> str:
    """The path of a request below any prefix."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path


class _JsonRequest(Request):
    """A request whose body is JSON, whatever its header says: by default curl's header says form data."""

    @cached_property
    def headers(self) -> Headers:
        named = [(name, value) for name, value in self.scope["headers"] if name != b"content-type"]
        return Headers(raw=[*named, (b"content-type", b"application/json")])

    async def json(self) -> dict[str, Any]:
        encoding = ", ".join(self.headers.getlist("content-encoding")) or "identity"
        if encoding.lower() != "identity":
            raise HTTPException(415, f"the body must be sent without content-encoding, got {shortened(encoding)}")
        body = await self.body()
        if _path(self.scope) not in IN_ARROW or not self._is_arrow:
            return read_json(body)
        queries, rest = await asyncio.to_thread(arrow.read_queries, body)
        fields = read_json(rest)
        if "queries" in fields:
            raise unreadable("the metadata `search` must not have queries, which are the rows of the body, got some")
        return {**fields, "queries": queries}

    @property
    def _is_arrow(self) -> bool:
        given = [value for name, value in self.scope["headers"] if name == b"content-type"]
        return [value.partition(b";")[0].strip().lower() for value in given] == [arrow.TYPE.encode()]


class _JsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await answer(_JsonRequest(request.scope, request.receive))

        return read


@dataclass(frozen=True)
class Question:
    """A question that is posted to a path.

    read: makes a request of a body's fields; raises pydantic's ValidationError if they are wrong.
    answer: the response to that request.
    """

    read: Callable[[dict[str, Any]], BaseModel]
    answer: Callable[[Any, Request], Coroutine[Any, Any, Response]]

    async def answered(self, request: Request) -> Response:
        """The response to the request's body."""
        if not await request.body():
            raise unreadable("the body must be given, got none")
        try:
            given = self.read(await request.json())
        except ValidationError as error:
            raise RequestValidationError(error.errors(include_url=False)) from None
        return await self.answer(given, request)


class DirectQuestions:
    """An ASGI application in front of another: it answers some questions itself. FastAPI's layers take two or three
    hundredths of the time of a small search.

    Args:
        questions: by path, below any prefix.
    """

    def __init__(self, app: ASGIApp, questions: Mapping[str, Question]) -> None:
        self._app, self._questions = app, questions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        question = None
        if scope["type"] == "http" and scope["method"] == "POST":
            question = self._questions.get(_path(scope))
        if question is None:
            await self._app(scope, receive, send)
            return
        request = _JsonRequest(scope, receive)
        try:
            response = await question.answered(request)
        except RequestValidationError as error:
            response = await _invalid(request, error)
        except HTTPException as error:
            response = await _refused(request, error)
        await response(scope, receive, send)


class _HeadAsGet:
    """An ASGI application in front of another: it answers HEAD like GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_head)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _refusal(422, sentence(error.errors()[0]))


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path = shortened(request.scope["path"])  # unchanged: `request.url` drops characters
    headers = dict(error.headers or {})
    if error.status_code == 404 and error.detail == "Not Found":
        paths = ", ".join(sorted(request.app.openapi()["paths"]))
        return _refusal(404, f"the path must be one of {paths}, got {path}")
    if error.status_code == 405:
        methods = set(headers.get("Allow", "").split(", "))
        allowed = sorted(methods | ({"HEAD"} if "GET" in methods else set()))
        message = f"{path} must be asked with {' or '.join(allowed)}, got {shortened(request.method)}"
        return _refusal(405, message, headers | {"Allow": ", ".join(allowed)})
    return _refusal(error.status_code, str(error.detail), headers)


def _refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    if len(message) > LONGEST_SENTENCE:
        message = f"{message[: LONGEST_SENTENCE - 3]}..."
    retry = {"Retry-After": "1"} if status in (429, 503) else {}
    return JSONResponse(ErrorResponse(error=message).model_dump(), status, {**retry, **(headers or {})})
