"""A shard's deployment: a mailbox around the items of one shard and the methods that search them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ray import serve as ray_serve

from rails_ray import build
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.retrieval.sharded import search_shard
from rails_ray.similarities.explain import explain
from rails_ray.similarities.states import QueryState, map_tensors, take
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.shards import read_shards
from rails_ray.storage.versions import read_manifest
from rails_ray.top_k import TopK

ItemId = str | int


@dataclass(frozen=True)
class ShardAnswer:
    """
    found: of each query, [1, k'] with rows of the whole corpus.
    bounds: of each query, what no item of the shard that was passed over scores above; None where that is not known.
    no_bound: why it is not known; None otherwise.
    num_scored: items of the shard whose score was computed, for each query.
    item_ids: of the rows in `found`.
    titles: likewise; None where the index has none.
    num_searched: items that each query could find, those of the shard less the excluded.
    """

    found: list[TopK]
    bounds: list[float] | None
    no_bound: str | None
    num_scored: list[int]
    item_ids: list[list[ItemId]]
    titles: list[list[str]] | None
    num_searched: list[int]


@dataclass(frozen=True)
class ShardExplanation:
    """
    items: those of the items asked for that the shard holds.
    titles: of them; None where the index has none.
    scores, cosines, gates: of them, the latter two [P_Q][P_X].
    """

    items: list[ItemId]
    titles: list[str] | None
    scores: list[float]
    cosines: list[list[list[float]]]
    gates: list[list[list[float]]]


@ray_serve.deployment(name="Shard")
class Shard:
    """Searches the items of one shard of an index version."""

    def __init__(self, storage: str, version: str, shard: int) -> None:
        store = Storage(storage)
        manifest = read_manifest(store, version)
        device = reserved_device()
        self.similarity = build.version_model(store, manifest).similarity.to(device)
        self.items = read_shards(store, manifest, [shard], self.similarity.num_components[1])
        self.rows = {item_id: row for row, item_id in enumerate(self.items.item_ids)}
        self.state = map_tensors(lambda tensor: tensor.to(device), self.items.state)
        self.device = device

    async def search(
        self,
        query: QueryState,
        k: int,
        method: str,
        num_candidates: int,
        num_per_embedding: int,
        exclude: Sequence[Sequence[ItemId]],
    ) -> ShardAnswer:
        """The k best items of the shard for each query, or all that are left after exclusion."""
        widths = num_candidates, num_per_embedding
        return await asyncio.to_thread(self._search, query, k, method, widths, exclude)

    def _search(
        self, query: QueryState, k: int, method: str, widths: tuple[int, int], exclude: Sequence[Sequence[ItemId]]
    ) -> ShardAnswer:
        retriever = build.retriever(method, self.similarity, self.state, *widths)
        rows = [[self.rows[item_id] for item_id in ids if item_id in self.rows] for ids in exclude]
        query = map_tensors(lambda tensor: tensor.to(self.device), query)
        answers = search_shard(retriever, len(self.rows), self.items.first_row, query, k, rows)
        found = [TopK(answer.top_k.scores.cpu(), answer.top_k.item_rows.cpu()) for answer in answers]
        bounds = [answer.certificate.bound for answer in answers]
        ids, titles = self.items.item_ids, self.items.titles
        places = [(one.item_rows[0] - self.items.first_row).tolist() for one in found]
        return ShardAnswer(
            found=found,
            bounds=None if None in bounds else [float(bound) for bound in bounds if bound is not None],
            no_bound=next((answer.certificate.reason for answer in answers if answer.certificate.reason), None),
            num_scored=[int(answer.num_scored) for answer in answers],
            item_ids=[[ids[place] for place in line] for line in places],
            titles=None if titles is None else [[titles[place] for place in line] for line in places],
            num_searched=[len(self.rows) - len(set(excluded)) for excluded in rows],
        )

    async def explain(self, query: QueryState, item_ids: Sequence[ItemId]) -> ShardExplanation:
        """Of one query and those of the items that the shard holds."""
        here = [item_id for item_id in item_ids if item_id in self.rows]
        rows = [self.rows[item_id] for item_id in here]
        query = map_tensors(lambda tensor: tensor.to(self.device), query)
        explained = explain(self.similarity, query, take(self.state, rows))
        return ShardExplanation(
            items=here,
            titles=None if self.items.titles is None else [self.items.titles[row] for row in rows],
            scores=explained.scores[0].tolist(),
            cosines=explained.cosines[0].tolist(),
            gates=explained.gates[0].tolist(),
        )

    async def num_items(self) -> int:
        """Items that this replica searches; answering says that it is up."""
        return len(self.rows)
