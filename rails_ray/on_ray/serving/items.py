"""The deployment that changes items, a process of its own, so that searches go on; and how a router asks it."""

from collections.abc import Sequence
from typing import Any

from ray import serve as ray_serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from rails_ray.errors import BusyError, UnavailableError
from rails_ray.on_ray.failures import own_cause
from rails_ray.schema.items import DeleteItemsRequest, ItemsRequest
from rails_ray.schema.responses import ItemsResponse
from rails_ray.serving.heap import trim
from rails_ray.serving.item_changes import ItemChanges, WaitingChanges
from rails_ray.storage.filesystem import Storage

KINDS: dict[str, type[ItemsRequest | DeleteItemsRequest]] = {"upsert": ItemsRequest, "delete": DeleteItemsRequest}


@ray_serve.deployment(name="Items")
class ItemChanger:
    """Changes items of a storage's current version, one request at a time.

    Args:
        follow_s: seconds between two looks of routers at the storage; None if they serve one version.
    """

    def __init__(self, storage: str, allow_code: Sequence[str], follow_s: float | None) -> None:
        self.changes = WaitingChanges(ItemChanges(Storage(storage), allow_code, follow_s))

    async def change(self, method: str, request: str) -> str:
        """The answer to a request as JSON; raises what `ItemChanges` does."""
        answer = await self.changes.carry_out(method, KINDS[method].model_validate_json(request))
        trim()
        return answer.model_dump_json()


class ItemsCaller:
    """Asks the deployment.

    Args:
        handle: Serve's handle of it.
    """

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def carry_out(self, method: str, request: ItemsRequest | DeleteItemsRequest) -> ItemsResponse:
        """The answer to `upsert` or `delete`; raises what `ItemChanges` does.

        Raises:
            BusyError: if too many changes wait.
            UnavailableError: if the replica died; the change may have been made or not.
        """
        try:
            answer: str = await self._handle.change.remote(method, request.model_dump_json())
        except BackPressureError:
            raise BusyError("a change of items must find a place, got a full queue: ask again") from None
        except (RayError, RayServeException) as error:
            cause = own_cause(error)
            if cause is not None:
                raise cause from None
            raise UnavailableError(
                "the replica that changes items must answer, got one that died: ask again, which changes nothing twice"
            ) from None
        return ItemsResponse.model_validate_json(answer)
