"""A shard's deployment: the items of one shard and the methods that search them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from ray import serve as ray_serve

from rails_ray.build.version import version_family, version_similarity
from rails_ray.item_ids import ItemId
from rails_ray.masks import Exclusions, Mask
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.serving.heap import give_back_soon
from rails_ray.retrieval.searchable import Widths
from rails_ray.retrieval.sharded import of_corpus
from rails_ray.similarities.states import AnyQuery, map_tensors
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.shards import read_shards
from rails_ray.storage.versions import read_manifest
from rails_ray.wanted import Found, Wanted

Value = TypeVar("Value")
MANY_ITEMS = 50_000  # in an answer: some 10 MB of ids, titles and scores


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """A replica's answer, and the version that it serves.

    identity: `Manifest.contents_sha256` of that version.
    value: None if the caller asked for another version. While one version replaces another, routers and shards of both
        are up.
    """

    identity: str
    value: Value | None


@dataclass(frozen=True)
class Asked:
    """The question to all shards for a batch of queries, in a form that travels: a method, and its `Wanted`.

    widths: widths of the method's first stage.
    k: most items for each query.
    threshold: lowest score wanted for each query [B]; None for the k best, whatever their scores.
    at_least: items wanted whatever their scores, with a threshold.
    """

    method: str
    widths: Widths
    k: int
    threshold: NDArray[np.float32] | None = None
    at_least: int = 0

    def wanted(self, mask: Mask | None = None, device: str | None = None) -> Wanted:
        """What a search on a device must find."""
        threshold = None if self.threshold is None else torch.tensor(self.threshold, device=device)
        return Wanted(self.k, threshold, self.at_least, mask)


@dataclass(frozen=True)
class ShardAnswer:
    """
    found: the items found, by rows of the whole corpus.
    item_ids: ids of each query's items in `found`.
    titles: titles likewise; None if the index has none.
    num_searched: items of the shard that each query could find, without the excluded ones [B].
    """

    found: Found
    item_ids: list[list[ItemId]]
    titles: list[list[str]] | None
    num_searched: NDArray[np.int64]


@dataclass(frozen=True)
class ShardExplanation:
    """
    items: the requested items that the shard holds.
    titles: their titles; None if the index has none.
    scores: their scores.
    cosines, gates: [P_Q][P_X] for each item.
    """

    items: list[ItemId]
    titles: list[str] | None
    scores: list[float]
    cosines: list[list[list[float]]]
    gates: list[list[list[float]]]


def of_identity(method: Callable[..., Awaitable[Value]]) -> Callable[..., Awaitable[Answer[Value]]]:
    """Wrap a replica's method. The caller names a version; the method runs only if the replica serves it. The answer
    names the replica's version."""

    @wraps(method)
    async def asked(self: Any, identity: str, *arguments: Any) -> Answer[Value]:
        value = await method(self, *arguments) if identity == self.identity else None
        return Answer(self.identity, value)

    return asked


@ray_serve.deployment(name="Shard")
class Shard:
    """Searches one shard of an index version. Callers name the version by its identity."""

    def __init__(self, storage: str, version: str, shard: int) -> None:
        store = Storage(storage)
        manifest = read_manifest(store, version)
        self.identity = manifest.contents_sha256
        device = reserved_device()
        similarity: Any = version_similarity(store, manifest).to(device)
        family = version_family(store, manifest)
        self.offers = family.offers
        self.items = read_shards(store, manifest, [shard], family.item_state, similarity.num_components[1])
        self.rows = {item_id: row for row, item_id in enumerate(self.items.item_ids)}
        state = map_tensors(lambda tensor: tensor.to(device), self.items.state)
        self.searchable = family.searchable(similarity, state)
        self.device = device

    @of_identity
    async def search(self, query: AnyQuery, asked: Asked, exclude: Sequence[Sequence[ItemId]]) -> ShardAnswer:
        """The wanted items of the shard for each query; fewer if exclusion leaves fewer."""
        answer = await asyncio.to_thread(self.answer, query, asked, exclude)
        if sum(map(len, answer.item_ids)) >= MANY_ITEMS:
            give_back_soon()
        return answer

    def answer(self, query: AnyQuery, asked: Asked, exclude: Sequence[Sequence[ItemId]]) -> ShardAnswer:
        wanted = asked.wanted(self._mask_of(exclude), self.device)
        found = self.searchable.search(self._here(query), wanted, asked.method, asked.widths)
        places = zip(found.item_rows.tolist(), found.num_found().tolist(), strict=True)
        rows = [line[:num_found] for line, num_found in places]
        ids, titles = self.items.item_ids, self.items.titles
        return ShardAnswer(
            found=of_corpus(found, self.items.first_row),
            item_ids=[[ids[row] for row in line] for line in rows],
            titles=None if titles is None else [[titles[row] for row in line] for line in rows],
            num_searched=wanted.num_left(len(query), len(self.rows)).numpy(),
        )

    @of_identity
    async def log_sum_exp(self, query: AnyQuery, exclude: Sequence[Sequence[ItemId]]) -> NDArray[np.float64]:
        """Log sum exp of the training logits over the shard's items that are not excluded, for each query [B]."""
        return await asyncio.to_thread(self._log_sum_exp, query, exclude)

    def _log_sum_exp(self, query: AnyQuery, exclude: Sequence[Sequence[ItemId]]) -> NDArray[np.float64]:
        total: NDArray[np.float64] = self.searchable.log_sum_exp(
            self._here(query), self.offers.logit, self._mask_of(exclude)
        ).numpy(force=True)
        return total

    @of_identity
    async def explain(self, query: AnyQuery, item_ids: Sequence[ItemId]) -> ShardExplanation:
        """Explain the scores of one query with the requested items that the shard holds."""
        return await asyncio.to_thread(self._explain, query, item_ids)

    def _explain(self, query: AnyQuery, item_ids: Sequence[ItemId]) -> ShardExplanation:
        here = [item_id for item_id in item_ids if item_id in self.rows]
        rows = [self.rows[item_id] for item_id in here]
        explained = self.searchable.explain(self._here(query), rows)
        return ShardExplanation(
            items=here,
            titles=None if self.items.titles is None else [self.items.titles[row] for row in rows],
            scores=explained.scores[0].tolist(),
            cosines=explained.cosines[0].tolist(),
            gates=explained.gates[0].tolist(),
        )

    def _here(self, query: AnyQuery) -> AnyQuery:
        return map_tensors(lambda tensor: tensor.to(self.device), query)

    def _mask_of(self, exclude: Sequence[Sequence[ItemId]]) -> Mask | None:
        """The mask of the excluded items that the shard holds, by its own rows; None if it holds none."""
        rows = [[self.rows[item_id] for item_id in ids if item_id in self.rows] for ids in exclude]
        return Exclusions.of(rows) if any(rows) else None

    @of_identity
    async def num_items(self) -> int:
        """Number of items that this replica searches. An answer shows that it is up."""
        return len(self.rows)
