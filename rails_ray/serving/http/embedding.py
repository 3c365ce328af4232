"""The query encoder on its own, by two protocols that other programs speak: OpenAI's embeddings, and the Open Inference
Protocol (KServe's version 2).

An embedding is what a search takes as a query's `embedding`. With `input_type` `document` or `passage`, as Voyage's and
NVIDIA's servers of OpenAI's protocol have it, it is what the encoder makes of an item. Fields that mean nothing here,
such as `user`, are ignored. A refusal is a sentence, as everywhere.

No annotation here may be a string: FastAPI reads them.
"""

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from fastapi import FastAPI, Request
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StrictStr, field_validator
from starlette.exceptions import HTTPException

from rails_ray.schema.fields import shortened
from rails_ray.serving.http import deadlines
from rails_ray.serving.http.deadlines import deadline_of, in_time
from rails_ray.serving.http.refusals import refused_with

MODEL = "rails-ray"  # a name for whatever version is served
ALWAYS = (401, 403, 408, 413, 429)
REFUSALS = (*ALWAYS, 404, 409, 415, 422, 503, 504)

Texts = Annotated[list[StrictStr], Field(min_length=1, fail_fast=True)]


class TextEmbedder(Protocol):
    """Members of a server that the routes need."""

    @property
    def version_name(self) -> str:
        """Name of the version that is served."""

    async def embed(self, texts: Sequence[str], *, are_items: bool = False) -> NDArray[np.float32]:
        """A vector for each text [B, D]; raises what `QueryEncoder.represent` does."""

    async def health(self) -> dict[str, Any]:
        """Return what the server says of itself when all of it answers; raises `UnavailableError` otherwise."""


class EmbeddingRequest(BaseModel):
    """
    encoding_format: `base64` is float32, little-endian.
    dimensions: of a vector; must be the model's.
    input_type: `query`, or `document` or `passage` for texts that are read as items.
    """

    input: StrictStr | Texts
    model: str = MODEL
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    input_type: Literal["query", "document", "passage"] = "query"

    @field_validator("input", mode="before")
    @classmethod
    def _check_no_tokens(cls, given: Any) -> Any:
        if isinstance(given, list) and given and isinstance(given[0], int | list):
            raise ValueError(
                f"must be a text or a list of texts, got token ids, {shortened(given)}: make the client send texts "
                "(LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)"
            )
        return given


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens are not counted."""

    prompt_tokens: int = 0
    total_tokens: int = 0


class EmbeddingResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage = Usage()


class OfferedModel(BaseModel):
    """
    created: OpenAI's field, in seconds of Unix time; not recorded here.
    """

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = MODEL


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[OfferedModel]


class InferInput(BaseModel):
    name: Literal["text"]
    shape: list[int]
    datatype: Literal["BYTES"]
    data: Texts


class InferRequest(BaseModel):
    id: str | None = None
    inputs: Annotated[list[InferInput], Field(min_length=1, max_length=1)]


class InferOutput(BaseModel):
    name: Literal["embedding"] = "embedding"
    shape: list[int]
    datatype: Literal["FP32"] = "FP32"
    data: list[float]


class InferResponse(BaseModel):
    model_name: str
    model_version: str
    id: str | None
    outputs: list[InferOutput]


def add_routes(
    api: FastAPI, encoder: Callable[[], TextEmbedder], carried_out: Callable[[Awaitable[Any]], Awaitable[Any]]
) -> None:
    """Add the routes of both protocols to an application.

    Args:
        carried_out: awaits, and turns errors that a client can act on into HTTP errors.
    """

    async def embedded(texts: list[str], deadline_ms: float | None, *, are_items: bool = False) -> NDArray[np.float32]:
        async with in_time(deadline_ms):
            found: NDArray[np.float32] = await carried_out(encoder().embed(texts, are_items=are_items))
        return found

    @api.post("/v1/embeddings", responses=refused_with(*REFUSALS), openapi_extra=deadlines.PARAMETERS)
    async def embeddings(request: EmbeddingRequest, http: Request) -> EmbeddingResponse:
        """The vectors that a search takes as `embedding`, as OpenAI's API has them."""
        _check_model(request.model, encoder().version_name)
        texts = [request.input] if isinstance(request.input, str) else request.input
        vectors = await embedded(texts, deadline_of(http), are_items=request.input_type != "query")
        if request.dimensions not in (None, vectors.shape[1]):
            raise HTTPException(
                422, f"dimensions must be the model's {vectors.shape[1]}, or left out, got {request.dimensions}"
            )
        data = [Embedding(index=index, embedding=_as_requested(row, request)) for index, row in enumerate(vectors)]
        return EmbeddingResponse(data=data, model=encoder().version_name)

    @api.get("/v1/models", responses=refused_with(*ALWAYS))
    async def models() -> ModelList:
        """List the names that `model` of an embedding may have, as OpenAI's API does."""
        return ModelList(data=[OfferedModel(id=name) for name in dict.fromkeys((MODEL, encoder().version_name))])

    @api.get("/v1/models/{name}", responses=refused_with(*ALWAYS, 404))
    async def offered_model(name: str) -> OfferedModel:
        """Return one of these names."""
        _check_model(name, encoder().version_name)
        return OfferedModel(id=name)

    @api.get("/v2", responses=refused_with(*ALWAYS))
    async def server() -> dict[str, Any]:
        """Return what the server is."""
        return {"name": MODEL, "version": encoder().version_name, "extensions": []}

    @api.get("/v2/health/live", responses=refused_with(408, 413))
    async def live() -> dict[str, bool]:
        """Return whether the server runs. Needs no key."""
        return {"live": True}

    @api.get("/v2/health/ready", responses=refused_with(408, 413, 503))
    async def ready() -> dict[str, bool]:
        """Return whether every shard answers. Needs no key."""
        await carried_out(encoder().health())
        return {"ready": True}

    @api.get("/v2/models/{name}", responses=refused_with(*ALWAYS, 404))
    async def model(name: str) -> dict[str, Any]:
        """Return what the query encoder takes and gives."""
        _check_model(name, encoder().version_name)
        return {
            "name": name,
            "versions": [encoder().version_name],
            "platform": "pytorch",
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
            "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, -1]}],
        }

    @api.get("/v2/models/{name}/ready", responses=refused_with(*ALWAYS, 404))
    async def model_ready(name: str) -> dict[str, Any]:
        """Return whether the query encoder is there."""
        _check_model(name, encoder().version_name)
        return {"name": name, "ready": True}

    @api.post("/v2/models/{name}/infer", responses=refused_with(*REFUSALS), openapi_extra=deadlines.PARAMETERS)
    async def infer(name: str, request: InferRequest, http: Request) -> InferResponse:
        """The vectors that a search takes as `embedding`, by KServe's protocol."""
        _check_model(name, encoder().version_name)
        [given] = request.inputs
        if given.shape != [len(given.data)]:
            message = f"inputs[0].shape must be [{len(given.data)}], the number of texts in data"
            raise HTTPException(422, f"{message}, got {shortened(given.shape)}")
        vectors = await embedded(given.data, deadline_of(http))
        output = InferOutput(shape=list(vectors.shape), data=vectors.ravel().tolist())
        return InferResponse(model_name=name, model_version=encoder().version_name, id=request.id, outputs=[output])


def _check_model(name: str, version: str) -> None:
    if name not in (MODEL, version):
        raise HTTPException(404, f"model must be {MODEL} or the version that is served, {version}, got {name[:100]!r}")


def _as_requested(row: NDArray[np.float32], request: EmbeddingRequest) -> list[float] | str:
    if request.encoding_format == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    numbers: list[float] = row.tolist()
    return numbers
