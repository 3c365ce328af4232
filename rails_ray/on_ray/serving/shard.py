"""A shard's deployment: one shard of an index version, as a mailbox."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from ray import serve as ray_serve

from rails_ray.errors import RailsRayError
from rails_ray.item_ids import ItemId
from rails_ray.modules.similarities.states import AnyQuery
from rails_ray.on_ray.cluster import reserved_device, reserved_share, unused_gpu
from rails_ray.on_ray.serving.plan import ONGOING_OF_SHARD, QUEUED_OF_SHARD
from rails_ray.on_ray.serving.scaling import ONGOING
from rails_ray.on_ray.serving.transport.codec import answered
from rails_ray.on_ray.serving.transport.listener import Address, Listener
from rails_ray.serving.gpu_faults import check_gpu, gpu_failures
from rails_ray.serving.heap import give_back_soon, trim
from rails_ray.serving.held_versions import HeldVersion, HeldVersions
from rails_ray.serving.scope import EVERYTHING, Scope
from rails_ray.serving.shard_messages import ShardExplanation, ShardItems, ShardRequest, ShardResponse
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage.filesystem import Storage

Value = TypeVar("Value")

MANY_ITEMS = 50_000  # in an answer: some 10 MB of ids, titles and scores


@ray_serve.deployment(name="Shard")
class Shard:
    """Searches one shard of an index version, or of those that routers want: the contract of `Replica`.

    Args:
        follows: whether it begins with the current version, and loads others that routers want.
    """

    methods = frozenset({"search", "log_sum_exp", "describe", "explain", "num_items"})

    def __init__(self, storage: str, version: str, shard: int, follows: bool = False) -> None:
        self.follows, self.device, self.unused_gpu = follows, reserved_device(), unused_gpu()
        self.versions = self._begun(Storage(storage), version, shard)
        self.listener = Listener(self, ONGOING_OF_SHARD, QUEUED_OF_SHARD)
        trim()

    def _begun(self, storage: Storage, version: str, shard: int) -> HeldVersions:
        """With the current version if it follows; with the one that was deployed if that cannot be loaded."""
        placed = self.device, reserved_share()
        if self.follows:
            try:
                return HeldVersions(storage, shard, None, *placed)
            except (RailsRayError, ValueError):  # which routers refuse, and tell
                pass
        return HeldVersions(storage, shard, version, *placed)

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Return what Serve awaits before it ends the replica: Serve knows of no direct call."""
        listener: Listener | None = getattr(self, "listener", None)  # none if the version could not be read
        return listener.close() if listener is not None and listener.is_open else None

    @property
    def identity(self) -> str:
        """The contract of `Replica`."""
        return self.versions.newest.identity

    def of(self, identity: str) -> "ShardAnswers | None":
        """The contract of `Replica`."""
        search = self.versions.of(identity)
        return None if search is None else ShardAnswers(search)

    async def address(self, wanted: str | None = None) -> Address:
        """Where routers may ask this replica directly.

        Args:
            wanted: the version that a router wants to ask for; it is loaded if it is not there.
        """
        await self.check_health()
        own = await self.listener.address()
        found = None if wanted is None else await asyncio.to_thread(self.versions.want, wanted)
        if isinstance(found, HeldVersion):
            own, search = replace(own, identity=found.identity), found.search
        else:
            own, search = replace(own, refused=found), self.versions.newest.search
        return replace(own, gpu_scan=self.unused_gpu or search.gpu_scan, indexes_on_cpu=search.indexes_on_cpu)

    async def call(self, method: str, message: bytes) -> bytes:
        """Answer a message that came by Serve's handle; raises what the method does."""
        return await answered(self, method, message)

    async def check_health(self) -> None:
        """Let the GPU compute a number, if there is one. Serve replaces a replica that fails here.

        Raises:
            LostGpuError: if it does not.
        """
        if self.device != "cpu":
            await asyncio.to_thread(check_gpu, self.device)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Count what is asked directly, which Serve does not see."""
        return {ONGOING: float(self.listener.num_ongoing)}


class ShardAnswers:
    """Answers of a shard in one version.

    Args:
        shard: the search of that version.
    """

    def __init__(self, shard: ShardSearch) -> None:
        self.shard = shard

    async def search(
        self, query: AnyQuery, request: ShardRequest, exclude: Sequence[Sequence[ItemId]]
    ) -> ShardResponse:
        """The wanted items of the shard for each query; fewer if exclusion leaves fewer."""
        answer = await self._in_thread(self.shard.search, query, request, exclude)
        if sum(map(len, answer.item_ids)) >= MANY_ITEMS:
            give_back_soon()
        return answer

    async def log_sum_exp(
        self, query: AnyQuery, exclude: Sequence[Sequence[ItemId]], factor: float = 1.0, scope: Scope = EVERYTHING
    ) -> NDArray[np.float64]:
        """Log sum exp of the training logits over `factor`, over the shard's items that a search may find [B]."""
        return await self._in_thread(self.shard.log_sum_exp, query, exclude, factor, scope)

    async def describe(self, item_ids: Sequence[ItemId], scope: Scope, fields: Sequence[str]) -> ShardItems:
        """Those of some items that the shard holds and a search may find, with some of their attributes."""
        return await self._in_thread(self.shard.describe, item_ids, scope, fields)

    async def explain(self, query: AnyQuery, item_ids: Sequence[ItemId]) -> ShardExplanation:
        """Explain the scores of one query with the requested items that the shard holds."""
        return await self._in_thread(self.shard.explain, query, item_ids)

    async def num_items(self) -> int:
        """Number of items that this replica searches. An answer shows that it is up."""
        return len(self.shard)

    async def _in_thread(self, call: Callable[..., Value], *arguments: Any) -> Value:
        """Return the result of a call that a thread makes; raises what `gpu_failures` does."""
        return await asyncio.to_thread(gpu_failures(self.shard.device)(call), *arguments)
