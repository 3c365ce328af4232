"""The routes that change items.

No annotation here may be a string: FastAPI reads them.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException

from rails_ray.errors import ConflictError, RailsRayError, UnavailableError, UnsupportedError
from rails_ray.schema.items import DeleteItemsRequest, ItemsRequest
from rails_ray.schema.responses import ItemsResponse
from rails_ray.serving.http.deadlines import deadline_of, in_time

PATH = "/v1/items"
CHANGES_NONE = (
    "items must be changed by a server that was started with --change-items, got one without: restart it with "
)
"--change-items"


class ChangesItems(Protocol):
    """Members of a server that the routes need. Both raise what `ItemChanges` does, `BusyError` if too many changes
    wait, and `UnsupportedError` if the server changes none."""

    async def upsert(self, request: ItemsRequest) -> ItemsResponse:
        """Add or replace items; see `ItemChanges.upsert`."""

    async def delete(self, request: DeleteItemsRequest) -> ItemsResponse:
        """Delete items; see `ItemChanges.delete`."""


def check_who_changes(changes_items: bool, keys_file: str | None) -> None:
    """Raises:
    ValueError: if anyone who can reach the server might change items.
    """
    if changes_items and keys_file is None:
        raise ValueError("--change-items must be given with a file of API keys, got a server that lets everyone in")


def add_routes(
    api: FastAPI,
    server: Callable[[], ChangesItems],
    carried_out: Callable[[Awaitable[Any]], Awaitable[Any]],
    question: dict[str, Any],
) -> None:
    """Add the routes to an application.

    Args:
        carried_out: awaits, and turns errors that a client can act on into HTTP errors.
        question: the OpenAPI of a route with a body.
    """

    @api.post(PATH, **question)
    async def upsert(request: ItemsRequest, http: Request) -> ItemsResponse:
        """Add items to the index, in place of those of the same ids. They are stored when the answer comes, and found
        once the server has loaded the version that it names. A request that is repeated changes nothing more."""
        async with in_time(deadline_of(http)):
            found: ItemsResponse = await carried_out(_stored(server().upsert(request)))
        return found

    @api.delete(PATH, **question)
    async def delete(request: DeleteItemsRequest, http: Request) -> ItemsResponse:
        """Delete items from the index; ids that no item has are counted. A request that is repeated changes nothing
        more."""
        async with in_time(deadline_of(http)):
            found: ItemsResponse = await carried_out(_stored(server().delete(request)))
        return found


async def _stored(change: Awaitable[ItemsResponse]) -> ItemsResponse:
    """The answer to a change; what is wrong with the storage is not the client's fault.

    Raises:
        HTTPException: 409 if others changed the version in the meantime, 503 if the storage cannot be used.
    """
    try:
        return await change
    except ConflictError as error:
        raise HTTPException(409, str(error)) from None
    except (UnsupportedError, UnavailableError):
        raise
    except RailsRayError as error:
        raise HTTPException(503, str(error)) from None
