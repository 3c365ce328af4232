"""All shards of a version in the process of a router, which asks them without a call to another process."""

import asyncio
from collections import defaultdict
from functools import partial
from typing import Any, TypeVar

from rails_ray.families.version import Version
from rails_ray.modules.similarities.states import AnyQuery
from rails_ray.on_ray.cluster import unused_gpu
from rails_ray.on_ray.serving.ranker import RankerCaller
from rails_ray.schema.requests import SearchRequest
from rails_ray.search.rounds import Done, Rounds
from rails_ray.serving.gpu_room import check_gpu_room
from rails_ray.serving.held_shards import HeldShards
from rails_ray.serving.missing_files import missing_bytes
from rails_ray.serving.room import check_room
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.serving.short_work import ShortWork

Value = TypeVar("Value")


class ShardsInRouter:
    """The contract of `Shards`. A search is done at once if it is short, and else in a thread.

    Args:
        version: a published version.
        device: where its items and its model go.
        share: part of a GPU that this process may take.
        ranker: the heavy ranker; None for none.
        former: those of another version, which these share what they can with.

    Raises:
        DamagedError: if a file of the version differs from its manifest.
        UnavailableError: if there is no room for them, on the GPU or beside the former ones.
    """

    def __init__(
        self,
        version: Version,
        device: str = "cpu",
        ranker: RankerCaller | None = None,
        former: "ShardsInRouter | None" = None,
        share: float = 1.0,
    ) -> None:
        before: list[ShardSearch | None] = [None] * version.num_shards
        has_model = former is not None and version.has_model_of(former._version)
        if former is not None:
            there = dict(enumerate(former._held.shards))
            before = [there.get(shard) for shard in range(version.num_shards)]
            check_room(sum(missing_bytes(version, *own) for own in enumerate(before)), version.name)
        check_gpu_room(version, dict(enumerate(before)), device, share, encodes=not has_model)
        self._version: Version = version
        self._unused_gpu = unused_gpu()
        self._held: HeldShards = HeldShards(
            [ShardSearch(version, shard, device, own) for shard, own in enumerate(before)]
        )
        self._ranker = ranker
        # By method, and by the bits of k.
        self._kinds = defaultdict[tuple[str | None, int], ShortWork](ShortWork)

    async def search(self, rounds: Rounds[Value], request: SearchRequest) -> Value:
        """The result of a search's rounds."""
        if request.budget is not None:
            return await self.carry_out(rounds)
        work = self._kinds[request.method, (request.k or 0).bit_length()]
        return await self._result(rounds, await work.done(partial(self._held.advance, rounds), len(request.queries)))

    async def carry_out(self, rounds: Rounds[Value]) -> Value:
        """The result of rounds that may take long."""
        return await self._result(rounds, await asyncio.to_thread(self._held.advance, rounds))

    async def _result(self, rounds: Rounds[Value], step: Any) -> Value:
        while not isinstance(step, Done):
            assert self._ranker is not None  # the engine refuses what needs one
            step = await asyncio.to_thread(self._held.advance, rounds, await self._ranker.ask(step))
        value: Value = step.value
        return value

    @property
    def gpu_scans(self) -> list[str]:
        """As of `HeldShards`; or why the GPU that is reserved is not used."""
        return self._held.gpu_scans if self._unused_gpu is None else [self._unused_gpu]

    @property
    def indexes_on_cpu(self) -> list[str]:
        """As of `HeldShards`."""
        return self._held.indexes_on_cpu

    async def num_items(self) -> list[Any]:
        """How many items each shard has."""
        return [len(shard) for shard in self._held.shards]

    async def ready(self) -> None:
        """Do nothing, as they are."""

    def leave(self) -> None:
        """Do nothing, as there are no connections."""

    def look_soon(self) -> None:
        """Do nothing, as there are no replicas to find."""

    def check(self, query: AnyQuery) -> None:
        """Score one item of each shard."""
        for shard in self._held.shards:
            shard.explain(query, shard.item_ids.take(shard.held.live_rows()[:1]))
