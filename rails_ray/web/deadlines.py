"""How long a client waits for an answer, as the header `x-deadline-ms` says it.

Whoever carries out the request is cancelled when the time is over, and so are the calls to shards that only this
request waits for.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Header
from starlette.exceptions import HTTPException

from rails_ray.answering.schemas import BudgetInput
from rails_ray.web.limits import ANSWER_S

FOR_RANKER = 0.9  # of the time of an answer; the rest is to write and to send it

DeadlineMs = Annotated[
    float | None,
    Header(
        alias="x-deadline-ms",
        gt=0,
        allow_inf_nan=False,
        description=f"milliseconds that the client waits for the answer, at most {1000 * ANSWER_S:g}; then 504",
    ),
]


@asynccontextmanager
async def in_time(deadline_ms: float | None) -> AsyncIterator[None]:
    """Cancel what is awaited inside the block when the time is over.

    Raises:
        HTTPException: 504, when the time is over.
    """
    limit_ms = min(deadline_ms or 1000 * ANSWER_S, 1000 * ANSWER_S)
    try:
        async with asyncio.timeout(limit_ms / 1000) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        told = f"an answer must be there within {limit_ms:g} ms, got none: allow more by x-deadline-ms, or ask for less"
        raise HTTPException(504, told) from None


def within(budget: BudgetInput | None, deadline_ms: float | None) -> BudgetInput | None:
    """A budget that leaves time to answer."""
    if budget is None or deadline_ms is None:
        return budget
    left_ms = FOR_RANKER * deadline_ms
    own_ms = left_ms if budget.deadline_ms is None else min(budget.deadline_ms, left_ms)
    return budget.model_copy(update={"deadline_ms": own_ms})
