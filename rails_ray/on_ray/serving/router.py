"""The router: HTTP in, encode, ask all shards at once, merge, cut, HTTP out.

The query side of the model is part of the router: a call to another deployment costs more than most encoders do.

No annotation here may be a string: FastAPI and Ray read them.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, Response
from numpy.typing import NDArray
from ray import serve as ray_serve
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException

from rails_ray.build.version import version_family
from rails_ray.cutoffs import Cutoff
from rails_ray.errors import UnavailableError, UnsupportedError
from rails_ray.on_ray.serving import refusals
from rails_ray.on_ray.serving.access import Access, Guard
from rails_ray.on_ray.serving.answers import coverage_of, explained, results_of
from rails_ray.on_ray.serving.asking import Shards
from rails_ray.on_ray.serving.cutoffs import Cutoffs
from rails_ray.on_ray.serving.encoder import QueryEncoder
from rails_ray.on_ray.serving.keys import KeysFile
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.serving.refusals import refused_with
from rails_ray.on_ray.serving.schemas import (
    ExplainRequest,
    ExplainResponse,
    QueryResult,
    SearchRequest,
    SearchResponse,
)
from rails_ray.on_ray.serving.shard import Asked, ShardAnswer
from rails_ray.on_ray.serving.streaming import json_response, pieces
from rails_ray.retrieval.rounds import search_rounds
from rails_ray.retrieval.searchable import DEFAULT_WIDTHS, Widths
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import summary
from rails_ray.storage.versions import read_manifest

api = FastAPI(
    title="rails-ray",
    version="1",
    description="Retrieval with learned similarities: encode -> candidates -> score -> cut.",
)


def _widths(request: SearchRequest, k: int) -> Widths:
    """The widths of the request; by default the usual ones, or k if that is more."""
    return Widths(
        num_candidates=request.num_candidates or max(DEFAULT_WIDTHS.num_candidates, k),
        num_per_embedding=request.num_per_embedding or max(DEFAULT_WIDTHS.num_per_embedding, k),
        num_probes=request.num_probes,
    )


def _access() -> Access:
    """The access rules of this replica's router, which does not exist yet when the application is made."""
    router: Any = ray_serve.get_replica_context().servable_object
    access: Access = router.access
    return access


api.add_middleware(Guard, access=_access)
refusals.install(api)


@contextmanager
def told_over_http(renamed: tuple[str, str] = ("", "")) -> Iterator[None]:
    """Inside the block, turn errors that a client can act on into HTTP errors.

    Args:
        renamed: a name in a message, and the request's name to put in its place.
    """
    try:
        yield
    except ValueError as error:
        raise HTTPException(422, str(error).replace(*renamed, 1)) from None
    except UnsupportedError as error:
        raise HTTPException(409, str(error)) from None
    except UnavailableError as error:
        raise HTTPException(503, str(error)) from None


@ray_serve.deployment(name="Router")
@ray_serve.ingress(api)
class Router:
    """
    Args:
        shards: handles of the shards, by number.
        args: arguments of the application, with the version set.
    """

    def __init__(
        self,
        shards: list[DeploymentHandle[Any]],
        args: ServeArgs,
    ) -> None:
        store = Storage(args.storage)
        manifest = read_manifest(store, args.version)
        self.shards = Shards(shards, manifest.version, manifest.contents_sha256, args.timeout_s)
        self.shard_items = manifest.shard_items
        self.cutoffs = Cutoffs.read(store, manifest, args)
        self.index_facts = {**summary(manifest), **self.cutoffs.summary()}
        self.encoder = QueryEncoder(store, manifest)
        self.model_facts = version_family(store, manifest).model_facts(manifest)
        self.args = args
        self.keys_file = None if args.keys_file is None else KeysFile(args.keys_file)
        self.keys_problem: str | None = None
        self.access = self._look_at_keys()
        self.asking_health: asyncio.Task[list[Any]] | None = None

    @api.post(
        "/v1/search",
        response_model=SearchResponse,
        responses=refused_with(401, 403, 408, 409, 413, 422, 503),
    )
    async def search(self, request: SearchRequest) -> Response:
        """The best items for each query, cut to those worth returning."""
        with told_over_http():
            head, results = await self.head_and_results(request)
        # As JSON directly: FastAPI would validate and copy it, which takes longer than the search.
        return await json_response(pieces(head, results))

    async def head_and_results(self, request: SearchRequest) -> tuple[SearchResponse, Iterator[QueryResult]]:
        """The answer without its results, and the results apart."""
        num_queries, most = len(request.queries), self.args.max_answered_items
        if num_queries > self.args.max_queries:
            raise ValueError(f"queries must have a length of at most {self.args.max_queries}, got {num_queries}")
        cutoff = self.cutoffs.resolve(request.cutoff, request.k)
        k = self.cutoffs.limit(cutoff, request.k, max(most // num_queries, 1))
        if num_queries * k > most:
            raise ValueError(
                f"queries times k must be at most {most} items, got {num_queries} x {k}: ask fewer queries at once"
            )
        policy: Cutoff | None = None
        if cutoff.needs_normaliser:
            self.cutoffs.check_logit()
        else:
            policy = self.cutoffs.policy(cutoff, k)  # raises before any work if the cut-off is wrong
        encoded = await asyncio.to_thread(self.encoder, [query.model_dump() for query in request.queries])
        state, temperature = encoded.state, encoded.state.temperature.numpy()
        exclude = [
            [*query.exclude, *(seen if query.exclude_seen else [])]
            for query, seen in zip(request.queries, encoded.seen, strict=True)
        ]

        def plan(log_normaliser: NDArray[np.float64] | None) -> tuple[Cutoff, Asked]:
            decided = policy or self.cutoffs.policy(cutoff, k, log_normaliser)
            floor = None if cutoff.top_k is not None else decided.floor(temperature).astype(np.float32)
            return decided, Asked(request.method, _widths(request, k), k, floor, min(cutoff.min_items, k))

        rounds = search_rounds(state, exclude, plan, needs_normaliser=cutoff.needs_normaliser)
        decided, asked, answers = await self.shards.carry_out(rounds)
        coverage = coverage_of(answers, self.shard_items, request.min_coverage).model_copy(update=self.model_facts)
        answered = [answer for answer in answers if isinstance(answer, ShardAnswer)]
        results = await asyncio.to_thread(results_of, answered, asked, decided, temperature, coverage, encoded.is_known)
        head = SearchResponse(
            version=self.index_facts["version"],
            method=request.method,
            is_exact=results.is_exact,
            cutoff=cutoff.model_dump(exclude_defaults=True),
            coverage=coverage,
            results=[],
        )
        return head, iter(results)

    @api.post(
        "/v1/explain",
        response_model=ExplainResponse,
        responses=refused_with(401, 403, 408, 413, 422, 503),
    )
    async def explain(self, request: ExplainRequest) -> ExplainResponse:
        """The component cosines and the gates of a query and some items."""
        with told_over_http(("queries[0]", "query")):
            encoded = await asyncio.to_thread(self.encoder, [request.query.model_dump()])
            answers = await self.shards.ask("explain", encoded.state, request.items)
            return explained(self.index_facts["version"], answers, request.items)

    @api.get("/v1/health", responses=refused_with(401, 403, 408, 413, 503))
    async def health(self) -> dict[str, Any]:
        """Whether every shard answers, with a warning if the file of API keys is unusable."""
        if self.asking_health is None or self.asking_health.done():
            self.asking_health = asyncio.create_task(self.shards.ask("num_items"))
        shards = await asyncio.shield(self.asking_health)  # one check for all concurrent callers
        missing = [f"shard {number}" for number, answer in enumerate(shards) if not isinstance(answer, int)]
        if missing:
            raise HTTPException(503, f"{len(shards)} shards must answer, got none from {', '.join(missing)}")
        warning = {} if self.keys_problem is None else {"warning": self.keys_problem}
        return {"status": "ok", "version": self.index_facts["version"], "num_shards": len(shards), **warning}

    @api.get("/v1/index", responses=refused_with(401, 403, 408, 413))
    async def index(self) -> dict[str, Any]:
        """What the server serves: version, items, shards, columns and the default cut-off."""
        return self.index_facts

    async def check_health(self) -> None:
        """Encode an example query, and read the keys again."""
        await asyncio.to_thread(self.encoder.check)
        self.access = await asyncio.to_thread(self._look_at_keys)

    def _look_at_keys(self) -> Access:
        """The access rules from now on. A new problem with the file of keys is logged once."""
        keys, problem = None, None
        if self.keys_file is not None:
            keys, problem = self.keys_file.look()
        if problem is not None and problem != self.keys_problem:
            logging.getLogger("ray.serve").error(problem)
        self.keys_problem = problem
        return Access(keys, self.args.max_body_bytes, self.args.max_requests)
