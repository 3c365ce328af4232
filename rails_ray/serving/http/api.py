"""The routes of a server, of one process or of Ray Serve.

No annotation here may be a string: FastAPI and Ray read them.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from fastapi import FastAPI, Request, Response
from numpy.typing import NDArray
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Scope

from rails_ray.errors import BusyError, UnavailableError, UnsupportedError
from rails_ray.schema.items import DeleteItemsRequest, ItemsRequest
from rails_ray.schema.requests import ExplainRequest, FeedbackRequest, SearchRequest
from rails_ray.schema.responses import ExplainResponse, FeedbackResponse, ItemsResponse, SearchResponse
from rails_ray.serving.http import arrow, console, deadlines, embedding, items, refusals
from rails_ray.serving.http.access import Access
from rails_ray.serving.http.admission import Admission
from rails_ray.serving.http.deadlines import deadline_of, in_time, within
from rails_ray.serving.http.origins import AllowedOrigins
from rails_ray.serving.http.refusals import DirectQuestions, Question, refused_with
from rails_ray.serving.http.request_ids import RequestIds
from rails_ray.serving.http.streaming import pieces, response_of
from rails_ray.serving.http.traces import Traced, show_stages
from rails_ray.serving.stages import as_header
from rails_ray.serving.traffic import Traffic
from rails_ray.serving.vector_queries import search_of

ALWAYS = (401, 403, 408, 413, 429)  # refusals of any request
OF_A_QUESTION = (*ALWAYS, 409, 415, 422, 503, 504)
QUESTION: dict[str, Any] = {"responses": refused_with(*OF_A_QUESTION), "openapi_extra": deadlines.PARAMETERS}


class Server(Protocol):
    """Carries out what the routes are asked for."""

    @property
    def access(self) -> Access:
        """Who gets in, and how much is let in."""

    @property
    def allowed_origins(self) -> Sequence[str]:
        """Origins whose pages may ask."""

    @property
    def traffic(self) -> Traffic:
        """Its searches, and what it learns of them."""

    async def explain(self, request: ExplainRequest) -> ExplainResponse:
        """The component cosines and the gates of a query and some items."""

    async def health(self) -> dict[str, Any]:
        """Return what the server says of itself when all of it answers.

        Raises:
            UnavailableError: if a part of it does not answer.
        """

    def index(self) -> dict[str, Any]:
        """Return what is served: version, items, shards, columns, the default cut-off and the heavy ranker; its
        traffic."""

    @property
    def version_name(self) -> str:
        """Name of the version that is served."""

    async def embed(self, texts: Sequence[str], *, are_items: bool = False) -> NDArray[np.float32]:
        """A vector for each text [B, D]; see `Engine.embed`."""

    async def upsert(self, request: ItemsRequest) -> ItemsResponse:
        """Add or replace items; see `ItemChanges.upsert`."""

    async def delete(self, request: DeleteItemsRequest) -> ItemsResponse:
        """Delete items; see `ItemChanges.delete`."""


def api_of(server: Callable[[], Server]) -> FastAPI:
    """The application.

    Args:
        server: called for each request, because it may not exist yet when the application is made.
    """
    api = FastAPI(
        title="rails-ray",
        version="1",
        description="Retrieval with learned similarities: encode -> candidates -> score -> cut.",
    )
    direct = dict[str, Question]()
    api.add_middleware(DirectQuestions, questions=direct)
    api.add_middleware(Admission, access=lambda: server().access)
    refusals.install(api)

    def count(scope: Scope, status: int) -> None:
        server().traffic.metrics.request(_known_path(api, scope), status)

    api.add_middleware(Traced)
    api.add_middleware(AllowedOrigins, origins=lambda: server().allowed_origins)
    api.add_middleware(RequestIds, on_answer=count)

    @api.post(
        "/v1/search",
        response_model=SearchResponse,
        responses=refused_with(*OF_A_QUESTION) | arrow.ANSWERS,
        openapi_extra=arrow.BODIES | deadlines.PARAMETERS,
    )
    async def search(request: SearchRequest, http: Request) -> Response:
        """The best items for each query, cut to those worth returning. Bodies may also be in Arrow's stream format."""
        deadline_ms = deadline_of(http)
        budgeted = request.model_copy(update={"budget": within(request.budget, deadline_ms)})
        with as_http_errors():
            async with in_time(deadline_ms):
                traffic = server().traffic  # of one version from here on
                found = await traffic.search(budgeted)
                results = traffic.counted(found)
                # As JSON directly: FastAPI would validate and copy it, which takes longer than the search.
                if arrow.is_wanted(http.headers.get("accept")):
                    facts = traffic.engine.facts
                    is_unsigned = facts["columns"]["item_id"] == "uint64"
                    fields = {name: facts["attributes"][name] for name in request.fields}
                    stream = arrow.pieces(found.head, results, is_unsigned=is_unsigned, fields=fields)
                    answer = await response_of(stream, found.is_small, arrow.TYPE)
                else:
                    answer = await response_of(pieces(found.head, results), found.is_small)
        show_stages(found.stages)
        answer.headers["server-timing"] = as_header(found.stages)
        return answer

    direct["/v1/search"] = Question(search_of, search)  # the route above is there for the documentation

    @api.post("/v1/explain", response_model=ExplainResponse, **QUESTION)
    async def explain(request: ExplainRequest, http: Request) -> ExplainResponse:
        """The component cosines and the gates of a query and some items."""
        with as_http_errors():
            async with in_time(deadline_of(http)):
                return await server().explain(request)

    @api.post("/v1/feedback", response_model=FeedbackResponse, **QUESTION)
    async def feedback(request: FeedbackRequest, http: Request) -> FeedbackResponse:
        """Which of the items that turned out to be relevant a search keeps. By these reports the server measures
        whether cut-offs by coverage keep what they promise: /v1/index and the metrics tell."""
        with as_http_errors():
            async with in_time(deadline_of(http)):
                return await server().traffic.feedback(request)

    @api.get("/v1/health", responses=refused_with(*ALWAYS, 503))
    async def health() -> dict[str, Any]:
        """Return whether every shard is there, with a warning if the file of API keys is unusable, or the current
        version is refused."""
        with as_http_errors():
            return await server().health()

    @api.get("/v1/health/live", responses=refused_with(408, 413))
    async def live() -> dict[str, str]:
        """Return whether the server runs. Needs no key."""
        return {"status": "ok"}

    @api.get("/v1/health/ready", responses=refused_with(408, 413, 503))
    async def ready() -> dict[str, str]:
        """Return whether every shard is there, and nothing else about it. Needs no key."""
        with as_http_errors():
            await server().health()
        return {"status": "ok"}

    @api.get("/v1/index", responses=refused_with(*ALWAYS))
    async def index() -> dict[str, Any]:
        """Return what the server serves: version, since when, items, shards, columns, the default cut-off and the heavy
        ranker; what it learnt of its traffic."""
        return server().index()

    embedding.add_routes(api, server, _carried_out)
    items.add_routes(api, server, _carried_out, QUESTION)
    console.add_routes(api)
    return api


def _known_path(api: FastAPI, scope: Scope) -> str:
    """The path of the route that a request is for; `other` for none, as clients may invent paths without end."""
    routes = (route for route in api.routes if isinstance(route, Route))
    return next((route.path for route in routes if route.path_regex.match(scope["path"])), "other")


async def _carried_out(work: Awaitable[Any]) -> Any:
    with as_http_errors():
        return await work


@contextmanager
def as_http_errors() -> Iterator[None]:
    """Inside the block, turn errors that a client can act on into HTTP errors."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    except UnsupportedError as error:
        raise HTTPException(409, str(error)) from None
    except UnavailableError as error:
        status = 429 if isinstance(error, BusyError) else 503
        raise HTTPException(status, str(error)) from None
