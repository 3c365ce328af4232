"""How long a client waits for an answer, as the header `x-deadline-ms` says it.

The request is cancelled when the time is over, and so are the calls to shards that only this
request waits for. Shards know how long a call is waited for, and drop what comes too late.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from rails_ray.schema.requests import BudgetInput
from rails_ray.serving.deadlines import ends_at
from rails_ray.serving.http.limits import ANSWER_S

HEADER = "x-deadline-ms"
FOR_RANKER = 0.9  # of the time of an answer; the rest is to write and to send it

_deadline = TypeAdapter(Annotated[float, Field(gt=0, allow_inf_nan=False)])

PARAMETERS: dict[str, Any] = {  # in the OpenAPI of a route that reads the header
    "parameters": [
        {
            "name": HEADER,
            "in": "header",
            "required": False,
            "schema": _deadline.json_schema(),
            "description": f"milliseconds that the client waits for the answer, at most {1000 * ANSWER_S:g}; then 504",
        }
    ]
}


def deadline_of(http: Request) -> float | None:
    """The header's milliseconds; None without one. Read here, as FastAPI takes as long for a header as for the rest
    of a small request.

    Raises:
        RequestValidationError: if it is no number above 0.
    """
    given = http.headers.get(HEADER)
    if given is None:
        return None
    try:
        return _deadline.validate_python(given)
    except ValidationError as error:
        raise RequestValidationError([own | {"loc": ("header", HEADER)} for own in error.errors()]) from None


@asynccontextmanager
async def in_time(deadline_ms: float | None) -> AsyncIterator[None]:
    """Cancel what is awaited inside the block when the time is over.

    Raises:
        HTTPException: 504, when the time is over.
    """
    limit_ms = min(deadline_ms or 1000 * ANSWER_S, 1000 * ANSWER_S)
    token = ends_at.set(time.monotonic() + limit_ms / 1000)
    try:
        async with asyncio.timeout(limit_ms / 1000) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        message = (
            f"an answer must be there within {limit_ms:g} ms, got none: allow more by x-deadline-ms, or ask for less"
        )
        raise HTTPException(504, message) from None
    finally:
        ends_at.reset(token)


def within(budget: BudgetInput | None, deadline_ms: float | None) -> BudgetInput | None:
    """A budget that leaves time to answer."""
    if budget is None or deadline_ms is None:
        return budget
    left_ms = FOR_RANKER * deadline_ms
    own_ms = left_ms if budget.deadline_ms is None else min(budget.deadline_ms, left_ms)
    return budget.model_copy(update={"deadline_ms": own_ms})
