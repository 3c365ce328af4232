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
from rails_ray.serving.heap import trim
from rails_ray.storage.filesystem import Storage

KEPT_S = 300.0  # that a model stays in memory after the last change


class ItemChanges:
    """Carries out changes of a storage's current version. Changes at the same time begin again and again, so that a
    server makes one at a time. What encodes items stays in memory from one change to the next, as long as the version's
    model is the same.

    Args:
        allow_code: modules whose code the version's config may name.
        found_within_s: seconds between two looks of the server at the storage; None if it does not follow it.
    """

    def __init__(self, storage: Storage, allow_code: Sequence[str] = (), found_within_s: float | None = None) -> None:
        self._storage, self._allow_code, self._found_within_s = storage, allow_code, found_within_s
        self._kept: Version | None = None

    def forget(self) -> None:
        """Give back the memory of what encodes items. No change may be under way."""
        self._kept = None
        trim()

    def _opened(self) -> Version:
        version = Version.published(self._storage, None, AllowedCode.given(self._allow_code))
        self._kept = version if self._kept is None else version.after(self._kept)
        return version

    def upsert(self, request: ItemsRequest) -> ItemsResponse:
        """Add items, in place of those of the same ids unless the request's mode is `add`. They are stored when it
        returns.

        Raises:
            NotFoundError: if nothing was published.
            ConflictError: if others changed the version again and again in the meantime.
            ValueError: if the items are wrong, or are there already and not to be replaced.
        """
        items, replaces = items_in(self._opened(), request.items), request.mode == "upsert"
        return self._answer(changing.add(self._storage, items, replaces=replaces, opened=self._opened))

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
    """Changes of one server, in a thread of their own, so that searches go on.

    Args:
        kept_s: seconds after the last change until the model's memory is given back.
    """

    def __init__(self, changes: ItemChanges, kept_s: float = KEPT_S) -> None:
        self._changes, self._thread, self._kept_s = changes, ThreadPoolExecutor(1, "items"), kept_s
        self._num_waiting = 0
        self._forgetting: asyncio.TimerHandle | None = None

    async def carry_out(self, method: str, request: ItemsRequest | DeleteItemsRequest) -> ItemsResponse:
        """The answer to `upsert` or `delete`; raises what these do.

        Raises:
            BusyError: if too many changes wait.
        """
        if self._num_waiting >= MOST_CHANGES:
            raise BusyError(f"at most {MOST_CHANGES} changes of items may wait, got one more: ask again in 1 s")
        self._num_waiting += 1
        if self._forgetting is not None:
            self._forgetting.cancel()
        change = asyncio.get_running_loop().run_in_executor(self._thread, getattr(self._changes, method), request)
        change.add_done_callback(self._no_longer_waiting)
        found: ItemsResponse = await asyncio.shield(change)  # a client that goes away stops no change
        return found

    def _no_longer_waiting(self, change: "asyncio.Future[ItemsResponse]") -> None:
        self._num_waiting -= 1
        if not self._num_waiting:
            self._forgetting = change.get_loop().call_later(self._kept_s, self._changes.forget)
        if not change.cancelled():
            change.exception()  # noted, whether or not its client is there
