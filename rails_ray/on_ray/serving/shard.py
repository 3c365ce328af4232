"""A shard's deployment: a mailbox around the items of one shard and the methods that search them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from ray import serve as ray_serve

from rails_ray.build import family
from rails_ray.build import search as search_building
from rails_ray.build.version import version_config, version_similarity
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.serving.heap import give_back_soon
from rails_ray.retrieval import Found, FoundAbove
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.retrieval.sharded import search_shard, search_shard_above
from rails_ray.similarities.explain import explain
from rails_ray.similarities.states import AnyQuery, ItemState, QueryState, map_tensors, take
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.shards import read_shards
from rails_ray.storage.versions import read_manifest
from rails_ray.top_k import Exclusions, TopK

ItemId = str | int
Value = TypeVar("Value")
MANY_ITEMS = 50_000  # of an answer: some 10 MB of ids, titles and scores


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """A replica's answer, and the version that it serves.

    identity: of that version (`Manifest.contents_sha256`).
    value: None if the caller asked for another version. Routers and shards of two versions are up while one replaces
        the other.
    """

    identity: str
    value: Value | None


@dataclass(frozen=True)
class Asked:
    """What all shards are asked for a batch of queries.

    k: at most so many items of each query.
    method: of the search, with the widths of its first stage.
    threshold: the lowest score that is wanted of each query [B]; None for the k best whatever their scores.
    min_items: wanted at least, whatever their scores.
    num_probes: buckets of each chunk, of `inverted`; None for as many as are usual.
    """

    k: int
    method: str
    num_candidates: int
    num_per_embedding: int
    threshold: NDArray[np.float32] | None = None
    min_items: int = 0
    num_probes: int | None = None


@dataclass(frozen=True)
class ShardAnswer:
    """
    found: of each query, [1, n] with rows of the whole corpus.
    is_truncated: of each query, whether items at or above the threshold were left out.
    bounds: of each query, what no item of the shard that was passed over scores above; None where that is not known.
    no_bound: why it is not known; None otherwise.
    num_scored: items of the shard whose score was computed, for each query.
    item_ids: of the rows in `found`.
    titles: likewise; None where the index has none.
    num_searched: items that each query could find, those of the shard less the excluded.
    """

    found: list[TopK]
    is_truncated: list[bool]
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


def of_identity(method: Callable[..., Awaitable[Value]]) -> Callable[..., Awaitable[Answer[Value]]]:
    """Wrap a replica's method: the caller names a version, the method runs only if the replica serves it, and the
    answer names the replica's own."""

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
        self.similarity: Any = version_similarity(store, manifest).to(device)
        self.config = version_config(store, manifest)
        self.items = read_shards(store, manifest, [shard], self.similarity.num_components[1])
        self.rows = {item_id: row for row, item_id in enumerate(self.items.item_ids)}
        self.state = map_tensors(lambda tensor: tensor.to(device), self.items.state)
        self.indexes = search_building.code_indexes(self.similarity, self.state)
        self.device = device

    @of_identity
    async def search(self, query: AnyQuery, asked: Asked, exclude: Sequence[Sequence[ItemId]]) -> ShardAnswer:
        """The items of the shard that are asked for, of each query, or all that are left after exclusion."""
        found = await asyncio.to_thread(self._search, query, asked, exclude)
        if sum(top_k.k for top_k in found.found) >= MANY_ITEMS:
            give_back_soon()
        return found

    def _search(self, query: AnyQuery, asked: Asked, exclude: Sequence[Sequence[ItemId]]) -> ShardAnswer:
        retriever = search_building.retriever(
            asked.method,
            self.similarity,
            self.state,
            asked.num_candidates,
            asked.num_per_embedding,
            asked.num_probes,
            self.indexes,
        )
        rows = self._rows_of(exclude)
        query, first_row = map_tensors(lambda tensor: tensor.to(self.device), query), self.items.first_row
        if asked.threshold is None:
            answers: Sequence[Found | FoundAbove] = search_shard(
                retriever, len(self.rows), first_row, query, asked.k, rows
            )
        else:
            threshold = torch.from_numpy(asked.threshold.copy()).to(self.device)  # what Ray delivers is read-only
            answers = search_shard_above(retriever, first_row, query, threshold, asked.k, asked.min_items, rows)
        return self._answer(answers, rows)

    def _answer(self, answers: Sequence[Found | FoundAbove], rows: list[list[int]]) -> ShardAnswer:
        items = [answer.top_k if isinstance(answer, Found) else answer.above.top_k for answer in answers]
        found = [TopK(one.scores.cpu(), one.item_rows.cpu()) for one in items]
        bounds = [answer.certificate.bound for answer in answers]
        ids, titles = self.items.item_ids, self.items.titles
        places = [(one.item_rows[0] - self.items.first_row).tolist() for one in found]
        return ShardAnswer(
            found=found,
            is_truncated=[isinstance(answer, FoundAbove) and bool(answer.above.is_truncated) for answer in answers],
            bounds=None if None in bounds else [float(bound) for bound in bounds if bound is not None],
            no_bound=next((answer.certificate.reason for answer in answers if answer.certificate.reason), None),
            num_scored=[int(answer.num_scored) for answer in answers],
            item_ids=[[ids[place] for place in line] for line in places],
            titles=None if titles is None else [[titles[place] for place in line] for line in places],
            num_searched=[len(self.rows) - len(set(excluded)) for excluded in rows],
        )

    @of_identity
    async def log_sum_exp(self, query: QueryState, exclude: Sequence[Sequence[ItemId]]) -> NDArray[np.float64]:
        """Of the training logits of all items of the shard that are not excluded, for each query."""
        return await asyncio.to_thread(self._log_sum_exp, query, exclude)

    def _log_sum_exp(self, query: QueryState, exclude: Sequence[Sequence[ItemId]]) -> NDArray[np.float64]:
        rows = self._rows_of(exclude)
        query = map_tensors(lambda tensor: tensor.to(self.device), query)
        excluded = Exclusions.of(rows) if any(rows) else None
        logit = family(self.config).offers.logit
        assert isinstance(self.state, ItemState)
        total = BruteForce(self.similarity, self.state).log_sum_exp(query, logit, excluded)
        return total.cpu().numpy()

    def _rows_of(self, item_ids: Sequence[Sequence[ItemId]]) -> list[list[int]]:
        """Rows of the shard, from 0, of those items that it holds."""
        return [[self.rows[item_id] for item_id in ids if item_id in self.rows] for ids in item_ids]

    @of_identity
    async def explain(self, query: AnyQuery, item_ids: Sequence[ItemId]) -> ShardExplanation:
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

    @of_identity
    async def num_items(self) -> int:
        """Items that this replica searches; answering says that it is up."""
        return len(self.rows)
