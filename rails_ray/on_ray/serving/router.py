"""The router: HTTP in, encode, ask all shards at once, merge, cut, HTTP out.

The query side of the model is part of it: to ask another deployment costs more than most encoders do.

No annotation here may be a string: FastAPI and Ray read them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from ray import serve as ray_serve
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException

from rails_ray import build_chunks
from rails_ray.errors import UnavailableError, UnsupportedError
from rails_ray.on_ray.serving.access import Access, Guard, Keys
from rails_ray.on_ray.serving.answers import coverage_of, explained, log_normaliser_of, results_of
from rails_ray.on_ray.serving.cutoffs import Cutoffs
from rails_ray.on_ray.serving.encoder import QueryEncoder
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.serving.schemas import (
    ErrorResponse,
    ExplainRequest,
    ExplainResponse,
    SearchRequest,
    SearchResponse,
    sentence,
)
from rails_ray.on_ray.serving.shard import Asked, ShardAnswer
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import summary
from rails_ray.storage.versions import read_manifest

NUM_CANDIDATES, NUM_PER_EMBEDDING = 1000, 50  # widths of a first stage, of a request that names none
REPLICA_LOST = (ActorDiedError, ActorUnavailableError, ReplicaUnavailableError)

api = FastAPI(
    title="rails-ray",
    version="1",
    description="Retrieval with learned similarities: encode -> candidates -> score -> cut.",
    strict_content_type=False,  # a body is JSON whatever its header says, so that the message speaks of the JSON
)


def _access() -> Access:
    """Of the router that this replica is: the application is made before it."""
    router: Any = ray_serve.get_replica_context().servable_object
    access: Access = router.access
    return access


api.add_middleware(Guard, access=_access)


@api.exception_handler(RequestValidationError)
async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    return _error(422, sentence(error.errors()[0]))


@api.exception_handler(HTTPException)
async def _refused(request: Request, error: HTTPException) -> JSONResponse:
    if error.status_code == 404 and error.detail == "Not Found":
        paths = ", ".join(sorted(path for path in api.openapi()["paths"]))
        return _error(404, f"the path must be one of {paths}, got {request.url.path}")
    if error.status_code == 405:
        return _error(405, f"{request.url.path} must be asked with another method, got {request.method}")
    return _error(error.status_code, str(error.detail))


def _error(status: int, message: str) -> JSONResponse:
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse(ErrorResponse(error=message).model_dump(), status, headers)


@contextmanager
def _told(renamed: tuple[str, str] = ("", "")) -> Iterator[None]:
    """Inside the block, errors that a caller can act on become answers.

    Args:
        renamed: what a message calls something, and what the request calls it.
    """
    try:
        yield
    except ValueError as error:
        raise HTTPException(422, str(error).replace(*renamed, 1)) from None
    except UnsupportedError as error:
        raise HTTPException(409, str(error)) from None
    except UnavailableError as error:
        raise HTTPException(503, str(error)) from None


async def answer_of(timeout_s: float, ask: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """What a replica answers; another one is asked, once, if it dies meanwhile. Nothing that is asked changes it.

    Raises:
        TimeoutError: if both together take too long.
    """
    async with asyncio.timeout(timeout_s):
        try:
            return await ask(*arguments)
        except REPLICA_LOST:
            return await ask(*arguments)


@ray_serve.deployment(name="Router")
@ray_serve.ingress(api)
class Router:
    """
    Args:
        shards: handles of the shards, by number.
        args: of the application, with its version.
    """

    def __init__(
        self,
        shards: list[DeploymentHandle[Any]],
        args: ServeArgs,
    ) -> None:
        store = Storage(args.storage)
        manifest = read_manifest(store, args.version)
        self.shards = shards
        self.shard_items = manifest.shard_items
        self.cutoffs = Cutoffs.read(store, manifest, args)
        self.index_facts = {**summary(manifest), **self.cutoffs.summary()}
        self.encoder = QueryEncoder(store, manifest)
        self.chunks = build_chunks.chunk_counts(self.cutoffs.config, manifest)
        self.args = args
        self.access = self._read_access()

    @api.post(
        "/v1/search",
        response_model=SearchResponse,
        responses={status: {"model": ErrorResponse} for status in (401, 403, 409, 413, 422, 503)},
    )
    async def search(self, request: SearchRequest) -> Response:
        """The best items for each query, cut to those worth returning."""
        with _told():
            answer = await self._search(request)
        # As JSON at once: FastAPI would check it anew and copy it, which takes longer than the search.
        return Response(answer.model_dump_json(), media_type="application/json")

    async def _search(self, request: SearchRequest) -> SearchResponse:
        if len(request.queries) > self.args.max_queries:
            raise ValueError(
                f"queries must have a length of at most {self.args.max_queries}, got {len(request.queries)}"
            )
        cutoff = self.cutoffs.resolve(request.cutoff, request.k)
        k = self.cutoffs.limit(cutoff, request.k)
        if cutoff.needs_normaliser:
            self.cutoffs.check_logit()
        else:
            policy = self.cutoffs.policy(cutoff, k)  # says what is wrong with it before any work
        encoded = await asyncio.to_thread(self.encoder, [query.model_dump() for query in request.queries])
        state, temperature = encoded.state, encoded.state.temperature.numpy()
        exclude = [
            [*query.exclude, *(seen if query.exclude_seen else [])]
            for query, seen in zip(request.queries, encoded.seen, strict=True)
        ]
        sums: list[Any] = [None for _ in self.shards]
        if cutoff.needs_normaliser:
            sums = await self._ask("log_sum_exp", state, exclude)
            policy = self.cutoffs.policy(cutoff, k, log_normaliser_of(sums))
        threshold = None
        if cutoff.top_k is None:  # in a thread, as a table may have to be made
            threshold = (await asyncio.to_thread(policy.floor, temperature)).astype(np.float32)
        asked = Asked(
            k=k,
            method=request.method,
            num_candidates=request.num_candidates or max(NUM_CANDIDATES, k),
            num_per_embedding=request.num_per_embedding or max(NUM_PER_EMBEDDING, k),
            num_probes=request.num_probes,
            threshold=threshold,
            min_items=min(cutoff.min_items, k),
        )
        answers = await self._ask("search", state, asked, exclude)
        # A shard that failed in the first of two rounds is not in the normaliser, and so must not be in the answer.
        answers = [
            first if isinstance(first, BaseException) else second for first, second in zip(sums, answers, strict=True)
        ]
        coverage = coverage_of(answers, self.shard_items, request.min_coverage).model_copy(update=self.chunks)
        answered = [answer for answer in answers if isinstance(answer, ShardAnswer)]
        results = await asyncio.to_thread(results_of, answered, asked, policy, temperature, coverage)
        for result, is_known in zip(results, encoded.is_known, strict=True):
            result.is_known = is_known
        return SearchResponse(
            version=self.index_facts["version"],
            method=request.method,
            is_exact=all(result.certificate.is_exact for result in results),
            cutoff=cutoff.model_dump(exclude_defaults=True),
            coverage=coverage,
            results=results,
        )

    async def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """What each shard answers to a call of its `method`, or the exception that came instead."""
        asked = [answer_of(self.args.timeout_s, getattr(shard, method).remote, *arguments) for shard in self.shards]
        return await asyncio.gather(*asked, return_exceptions=True)

    @api.post(
        "/v1/explain",
        response_model=ExplainResponse,
        responses={status: {"model": ErrorResponse} for status in (401, 403, 413, 422, 503)},
    )
    async def explain(self, request: ExplainRequest) -> ExplainResponse:
        """The component cosines and the gates of a query and some items."""
        with _told(("queries[0]", "query")):
            encoded = await asyncio.to_thread(self.encoder, [request.query.model_dump()])
            answers = await self._ask("explain", encoded.state, request.items)
            return explained(self.index_facts["version"], answers, request.items)

    @api.get("/v1/health", responses={503: {"model": ErrorResponse}})
    async def health(self) -> dict[str, Any]:
        """Whether every shard answers."""
        shards = await self._ask("num_items")
        missing = [f"shard {number}" for number, answer in enumerate(shards) if not isinstance(answer, int)]
        if missing:
            raise HTTPException(503, f"{len(shards)} shards must answer, got none from {', '.join(missing)}")
        return {"status": "ok", "version": self.index_facts["version"], "num_shards": len(shards)}

    @api.get("/v1/index")
    async def index(self) -> dict[str, Any]:
        """What is served: version, items, shards, columns and the default cut-off."""
        return self.index_facts

    async def check_health(self) -> None:
        """Encodes a query, and looks at the keys again. A file that cannot be used leaves those that were."""
        await asyncio.to_thread(self.encoder.check)
        try:
            self.access = await asyncio.to_thread(self._read_access)
        except ValueError as error:
            logging.getLogger("ray.serve").warning("the former API keys stay in use: %s", error)

    def _read_access(self) -> Access:
        keys = None if self.args.keys_file is None else Keys.read(self.args.keys_file)
        return Access(keys, self.args.max_body_bytes)
