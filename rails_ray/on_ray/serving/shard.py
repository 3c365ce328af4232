"""A shard's deployment: a mailbox around the items of one shard and the methods that search them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ray import serve as ray_serve

from rails_ray import build
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.retrieval.sharded import search_shard
from rails_ray.similarities.states import QueryState, map_tensors
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.shards import read_shards
from rails_ray.storage.versions import read_manifest
from rails_ray.top_k import TopK

ItemId = str | int


@dataclass(frozen=True)
class ShardAnswer:
    """
    found: of each query, [1, k'] with rows of the whole corpus.
    item_ids: of the rows in `found`.
    titles: likewise; None where the index has none.
    num_searched: items that each query could find, those of the shard less the excluded.
    is_exact: whether this equals brute force over the shard.
    """

    found: list[TopK]
    item_ids: list[list[ItemId]]
    titles: list[list[str]] | None
    num_searched: list[int]
    is_exact: bool


@ray_serve.deployment(name="Shard")
class Shard:
    """Searches the items of one shard of an index version."""

    def __init__(self, storage: str, version: str, shard: int) -> None:
        store = Storage(storage)
        manifest = read_manifest(store, version)
        self.items = read_shards(store, manifest, [shard])
        self.rows = {item_id: row for row, item_id in enumerate(self.items.item_ids)}
        device = reserved_device()
        self.similarity = build.version_model(store, manifest).similarity.to(device)
        self.state = map_tensors(lambda tensor: tensor.to(device), self.items.state)
        self.device = device

    async def search(
        self,
        query: QueryState,
        k: int,
        method: str,
        num_candidates: int,
        exclude: Sequence[Sequence[ItemId]],
    ) -> ShardAnswer:
        """The k best items of the shard for each query, or all that are left after exclusion."""
        return await asyncio.to_thread(self._search, query, k, method, num_candidates, exclude)

    def _search(
        self, query: QueryState, k: int, method: str, num_candidates: int, exclude: Sequence[Sequence[ItemId]]
    ) -> ShardAnswer:
        retriever = build.retriever(method, self.similarity, self.state, num_candidates)
        rows = [[self.rows[item_id] for item_id in ids if item_id in self.rows] for ids in exclude]
        query = map_tensors(lambda tensor: tensor.to(self.device), query)
        found = search_shard(retriever, len(self.rows), self.items.first_row, query, k, rows)
        found = [TopK(one.scores.cpu(), one.item_rows.cpu()) for one in found]
        ids, titles = self.items.item_ids, self.items.titles
        places = [(one.item_rows[0] - self.items.first_row).tolist() for one in found]
        return ShardAnswer(
            found=found,
            item_ids=[[ids[place] for place in line] for line in places],
            titles=None if titles is None else [[titles[place] for place in line] for line in places],
            num_searched=[len(self.rows) - len(set(excluded)) for excluded in rows],
            is_exact=retriever.is_exact,
        )

    async def num_items(self) -> int:
        """Items that this replica searches; answering says that it is up."""
        return len(self.rows)
