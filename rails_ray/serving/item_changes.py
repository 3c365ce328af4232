"""Changes of items that clients ask for: encoded by the current version's own model, and stored as the next version."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rails_ray.allowed_code import AllowedCode
from rails_ray.errors import BusyError
from rails_ray.families import changing
from rails_ray.families.json_items import items_in
from rails_ray.families.version import Version
from rails_ray.schema.items import MOST_CHANGES, DeleteItemsRequest, ItemsRequest
from rails_ray.schema.responses import ItemsResponse
from rails_ray.storage.filesystem import Storage


class ItemChanges:
    """Carries out changes of a storage's current version. Changes at the same time begin again and again, so that a
    server makes one at a time.

    Args:
        allow_code: modules whose code the version's config may name.
        found_within_s: seconds between two looks of the server at the storage; None if it does not follow it.
    """

    def __init__(self, storage: Storage, allow_code: Sequence[str] = (), found_within_s: float | None = None) -> None:
        self._storage, self._allow_code, self._found_within_s = storage, allow_code, found_within_s

    def upsert(self, request: ItemsRequest) -> ItemsResponse:
        """Add items, in place of those of the same ids unless the request's mode is `add`. They are stored when it
        returns.

        Raises:
            NotFoundError: if nothing was published.
            ConflictError: if others changed the version again and again in the meantime.
            ValueError: if the items are wrong, or are there already and not to be replaced.
        """
        version = Version.published(self._storage, None, AllowedCode.given(self._allow_code))
        items, replaces = items_in(version, request.items), request.mode == "upsert"
        return self._answer(changing.add(self._storage, items, replaces=replaces, allow_code=self._allow_code))

    def delete(self, request: DeleteItemsRequest) -> ItemsResponse:
        """Delete items. They are gone from the storage's current version when it returns.

        Raises:
            NotFoundError: if nothing was published.
            ConflictError: if others changed the version again and again in the meantime.
            ValueError: if no item would be left.
        """
        return self._answer(changing.delete(self._storage, request.ids, allow_code=self._allow_code))

    def _answer(self, change: changing.Change) -> ItemsResponse:
        return ItemsResponse(
            version=change.manifest.version,
            num_added=change.num_added,
            num_replaced=change.num_replaced,
            num_deleted=change.num_deleted,
            num_unknown=change.num_unknown,
            found_within_s=self._found_within_s,
        )


class WaitingChanges:
    """Changes of one server, in a thread of their own, so that searches go on."""

    def __init__(self, changes: ItemChanges) -> None:
        self._changes, self._thread = changes, ThreadPoolExecutor(1, "items")
        self._num_waiting = 0

    async def carry_out(self, method: str, request: ItemsRequest | DeleteItemsRequest) -> ItemsResponse:
        """The answer to `upsert` or `delete`; raises what these do.

        Raises:
            BusyError: if too many changes wait.
        """
        if self._num_waiting >= MOST_CHANGES:
            raise BusyError(f"at most {MOST_CHANGES} changes of items may wait, got one more: ask again in 1 s")
        self._num_waiting += 1
        change = asyncio.get_running_loop().run_in_executor(self._thread, getattr(self._changes, method), request)
        change.add_done_callback(self._no_longer_waiting)
        found: ItemsResponse = await asyncio.shield(change)  # a client that goes away stops no change
        return found

    def _no_longer_waiting(self, change: "asyncio.Future[ItemsResponse]") -> None:
        self._num_waiting -= 1
        if not change.cancelled():
            change.exception()  # noted, whether or not its client is there
