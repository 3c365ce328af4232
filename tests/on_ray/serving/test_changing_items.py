"""The replica that changes items: what it answers, and what a router makes of its failures."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError

from rails_ray import local
from rails_ray.errors import BusyError, UnavailableError
from rails_ray.on_ray.serving.items import ItemChanger, ItemsCaller
from rails_ray.schema.items import DeleteItemsRequest, ItemsRequest
from rails_ray.schema.responses import ItemsResponse

STORED = ItemsRequest(items=[{"id": 9, "embedding": [1.0, 1.0]}])


def caller_of(change: Any) -> ItemsCaller:
    handle: Any = SimpleNamespace(change=SimpleNamespace(remote=change))
    return ItemsCaller(handle)


def test_items_are_stored_and_deleted_over_a_handle(tmp_path: Path) -> None:
    local.build(np.eye(2, dtype=np.float32), folder=str(tmp_path))

    async def scenario() -> list[ItemsResponse]:
        caller = caller_of(ItemChanger.func_or_class(str(tmp_path), [], 5.0).change)
        gone = DeleteItemsRequest(ids=[9, "nobody"])
        return [await caller.carry_out("upsert", STORED), await caller.carry_out("delete", gone)]

    stored, deleted = asyncio.run(scenario())
    assert (stored.num_added, stored.found_within_s) == (1, 5.0)
    assert (deleted.num_deleted, deleted.num_unknown) == (1, 1)
    assert local.open(str(tmp_path)).facts["num_items"] == 2


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (BackPressureError(num_queued_requests=9, max_queued_requests=8), BusyError, "must find a place, got a full"),
        (ActorDiedError(), UnavailableError, "the replica that changes items must answer, got one that died"),
        (
            RayTaskError("change", "a traceback", ValueError("items[0] is wrong")).as_instanceof_cause(),
            ValueError,
            r"^items\[0\] is wrong$",
        ),
    ],
)
def test_failures_are_told_as_what_they_are(failure: Exception, kind: type[Exception], message: str) -> None:
    async def fails(*_: Any) -> str:
        raise failure

    with pytest.raises(kind, match=message):
        asyncio.run(caller_of(fails).carry_out("upsert", STORED))
