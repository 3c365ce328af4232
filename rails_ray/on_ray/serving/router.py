"""The router: HTTP in, encode, ask all shards at once, merge, cut, HTTP out.

No annotation here may be a string: FastAPI and Ray read them.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from ray import serve as ray_serve
from ray.exceptions import RayTaskError
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException

from rails_ray.cutoffs.policies import cut
from rails_ray.on_ray.serving.schemas import (
    Coverage,
    CutoffInput,
    ErrorResponse,
    QueryResult,
    SearchRequest,
    SearchResponse,
    sentence,
)
from rails_ray.on_ray.serving.shard import ShardAnswer
from rails_ray.retrieval.sharded import merge_shards

api = FastAPI(
    title="rails-ray",
    version="1",
    description="Retrieval with learned similarities: encode -> candidates -> score -> cut.",
    strict_content_type=False,  # a body is JSON whatever its header says, so that the message speaks of the JSON
)


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


@ray_serve.deployment(name="Router", max_ongoing_requests=100)
@ray_serve.ingress(api)
class Router:
    """
    Args:
        encoder: handle of the query encoder.
        shards: handles of the shards, by number.
        shard_items: items of each shard.
        index: what `GET /v1/index` answers; holds `version`, `num_items` and `cutoff_mass`.
        timeout_s: how long an encoder or a shard may take to answer a request.
    """

    def __init__(
        self,
        encoder: DeploymentHandle[Any],
        shards: list[DeploymentHandle[Any]],
        shard_items: list[int],
        index: dict[str, Any],
        timeout_s: float,
    ) -> None:
        self.encoder = encoder
        self.shards = shards
        self.shard_items = shard_items
        self.index_facts = index
        self.timeout_s = timeout_s

    @api.post("/v1/search", responses={status: {"model": ErrorResponse} for status in (404, 422, 503)})
    async def search(self, request: SearchRequest) -> SearchResponse:
        """The best items for each query, cut to those worth returning."""
        num_items = self.index_facts["num_items"]
        if request.k > num_items:
            raise HTTPException(422, f"k must be at most the {num_items} indexed items, got {request.k}")
        cutoff = self._cutoff(request)
        queries = [query.model_dump() for query in request.queries]
        try:
            state = await self._within(self.encoder.encode.remote(queries))
        except RayTaskError as error:
            if isinstance(error.cause, ValueError):
                raise HTTPException(422, str(error.cause)) from None
            raise HTTPException(503, "the query encoder must answer, got a failure: try again") from None
        except Exception:
            raise HTTPException(503, "the query encoder must answer, got none: try again") from None

        exclude = [query.exclude for query in request.queries]
        answers = await asyncio.gather(
            *(
                self._within(shard.search.remote(state, request.k, request.method, request.num_candidates, exclude))
                for shard in self.shards
            ),
            return_exceptions=True,
        )
        coverage, answered = self._coverage(answers, request.min_coverage)
        try:
            return await asyncio.to_thread(
                self._respond, request, cutoff, state.temperature.numpy(), coverage, answered
            )
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    @api.get("/v1/health", responses={503: {"model": ErrorResponse}})
    async def health(self) -> dict[str, Any]:
        """Whether every shard answers."""
        answers = await asyncio.gather(
            *(self._within(shard.num_items.remote()) for shard in self.shards), return_exceptions=True
        )
        missing = [f"shard {number}" for number, answer in enumerate(answers) if not isinstance(answer, int)]
        if missing:
            raise HTTPException(503, f"all {len(self.shards)} shards must answer, got none from {', '.join(missing)}")
        return {"status": "ok", "version": self.index_facts["version"], "num_shards": len(self.shards)}

    @api.get("/v1/index")
    async def index(self) -> dict[str, Any]:
        """What is served: version, items, shards, columns and the default cut-off."""
        return self.index_facts

    async def _within(self, answer: Awaitable[Any]) -> Any:
        return await asyncio.wait_for(answer, self.timeout_s)

    def _cutoff(self, request: SearchRequest) -> CutoffInput:
        """The cut-off that the request names, or the version's own."""
        mass = self.index_facts["cutoff_mass"]
        if request.cutoff is None:
            return CutoffInput(top_k=request.k) if mass is None else CutoffInput(mass=mass)
        if request.cutoff.mass is not None and mass is None:
            raise HTTPException(
                422, "cutoff.mass must not be asked of this index, whose model has no trained tau_q: use score or top_k"
            )
        return request.cutoff

    def _coverage(
        self, answers: Sequence[ShardAnswer | BaseException], min_coverage: float
    ) -> tuple[Coverage, list[ShardAnswer]]:
        """What was searched, and the answers; 503 where that is less than asked for."""
        answered = [answer for answer in answers if isinstance(answer, ShardAnswer)]
        searched = sum(
            size for size, answer in zip(self.shard_items, answers, strict=True) if isinstance(answer, ShardAnswer)
        )
        coverage = Coverage(
            shards_answered=len(answered),
            num_shards=len(answers),
            items_searched=searched,
            num_items=self.index_facts["num_items"],
        )
        if not answered or searched < min_coverage * coverage.num_items:
            raise HTTPException(
                503,
                f"min_coverage must be reached, {min_coverage:g} of {coverage.num_items} items, got {searched} from "
                f"{len(answered)} of {len(answers)} shards: try again or ask for less",
            )
        return coverage, answered

    def _respond(
        self,
        request: SearchRequest,
        cutoff: CutoffInput,
        temperature: np.ndarray,
        coverage: Coverage,
        answered: list[ShardAnswer],
    ) -> SearchResponse:
        merged = merge_shards([answer.found for answer in answered], request.k)
        scores = np.concatenate([top_k.scores.numpy() for top_k in merged])
        kept = cut(scores, temperature, cutoff.policy(), coverage.items_searched)
        results = []
        for number, top_k in enumerate(merged):
            item_id = {
                row: item_id
                for answer in answered
                for row, item_id in zip(
                    answer.found[number].item_rows[0].tolist(), answer.item_ids[number], strict=True
                )
            }
            num_kept = int(kept.num_kept[number])
            threshold = float(kept.threshold[number])
            results.append(
                QueryResult(
                    items=[item_id[row] for row in top_k.item_rows[0, :num_kept].tolist()],
                    scores=scores[number, :num_kept].tolist(),
                    threshold=threshold if np.isfinite(threshold) else None,
                    num_kept=num_kept,
                    is_truncated=bool(kept.is_truncated[number]),
                )
            )
        return SearchResponse(
            version=self.index_facts["version"],
            method=request.method,
            is_exact=all(answer.is_exact for answer in answered),
            cutoff=cutoff.model_dump(exclude_none=True),
            coverage=coverage,
            results=results,
        )
