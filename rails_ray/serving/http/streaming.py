"""An answer in one piece if small, as a stream if large, so that memory never holds it twice; and its JSON."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
from fastapi import Response
from fastapi.responses import StreamingResponse

from rails_ray.schema.responses import QueryResult, SearchResponse
from rails_ray.serving.heap import give_back_soon

PIECE_BYTES = 256 * 2**10  # each piece costs a message from router to proxy
JSON = "application/json"


def pieces(head: SearchResponse, results: Iterator[QueryResult]) -> Iterator[bytes]:
    """The JSON of an answer, result by result, as the models write it; what is not finite is null.

    Args:
        head: the answer with an empty `results`, which must be its last field.
    """
    start = _json_of(head)
    assert start.endswith(b'"results":[]}')
    yield start.removesuffix(b"]}")
    for number, result in enumerate(results):
        yield b"," * (number > 0) + _json_of(result)
    yield b"]}"


def _json_of(model: Any) -> bytes:
    """The JSON of a model whose fields are models or JSON's own values, several times faster than by pydantic."""
    return orjson.dumps(vars(model), default=vars)


def in_large_pieces(small: Iterator[bytes]) -> Iterator[bytes]:
    """Cut bytes into pieces of at least `PIECE_BYTES`; the last may be smaller."""
    held, num_bytes = list[bytes](), 0
    for piece in small:
        held.append(piece)
        num_bytes += len(piece)
        if num_bytes >= PIECE_BYTES:
            yield b"".join(held)
            held, num_bytes = [], 0
    yield b"".join(held)


async def response_of(small: Iterator[bytes], is_small: bool, media_type: str = JSON) -> Response:
    """A response of these bytes, which are produced outside the event loop unless `is_small`."""
    large = in_large_pieces(small)
    first = next(large) if is_small else await asyncio.to_thread(next, large)
    if len(first) < PIECE_BYTES:
        return Response(first, media_type=media_type)

    async def stream() -> AsyncIterator[bytes]:
        try:
            yield first
            while (piece := await asyncio.to_thread(next, large, None)) is not None:
                yield piece
        finally:
            give_back_soon()

    return StreamingResponse(stream(), media_type=media_type)
