"""One shard of a version: its items and the methods that search them, and what is asked of it and answered.

Axes: B queries, P_Q / P_X components.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from rails_ray.cutoffs.temperatures import tempered
from rails_ray.families.shards import Items, with_vectors_of
from rails_ray.families.version import Version
from rails_ray.item_ids import ItemId
from rails_ray.modules.similarities.states import AnyQuery, map_tensors
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.masks import Exclusions, Mask
from rails_ray.search.sharded import of_corpus
from rails_ray.search.spec import SearchResult, SearchSpec
from rails_ray.search.zeros import NO_COSINE, with_zeros_last
from rails_ray.stopwatch import noted
from rails_ray.storage.numbers import numbers_as_array

Value = TypeVar("Value")


@dataclass(frozen=True)
class ShardRequest:
    """The question to all shards for a batch of queries, in a form that travels: a method, and its `SearchSpec`.

    params: how hard to search.
    k: most items for each query.
    threshold: lowest score wanted for each query [B]; None for the k best, whatever their scores.
    at_least: items wanted whatever their scores, with a threshold.
    for_ranker: whether answers hold what a heavy ranker reads of each item.
    with_vectors: whether they hold each item's vector.
    """

    method: str
    params: SearchParams
    k: int
    threshold: NDArray[np.float32] | None = None
    at_least: int = 0
    for_ranker: bool = False
    with_vectors: bool = False

    def spec(self, mask: Mask | None = None, device: str | None = None) -> SearchSpec:
        """Compute what a search on a device must find."""
        threshold = None if self.threshold is None else torch.tensor(self.threshold, device=device)
        return SearchSpec(self.k, threshold, self.at_least, mask)


@dataclass(frozen=True)
class ShardResponse:
    """
    found: the items found, by rows of the whole corpus.
    item_ids: ids of each query's items in `found`.
    titles: titles likewise; None if the index has none.
    num_searched: items of the shard that each query could find, without the excluded ones [B].
    texts, vectors: likewise, if they were asked for; a vector for each item, in one array for each query [n, D].
    num_excluded: how many ids that each query excludes name an item of the shard [B]; None if nobody counted.
    seconds: how long the search took to find candidates and to score them; nothing if nobody says.
    """

    found: SearchResult
    item_ids: list[list[ItemId]]
    titles: list[list[str]] | None
    num_searched: NDArray[np.int64]
    texts: list[list[str]] | None = None
    vectors: list[NDArray[np.float32]] | None = None
    num_excluded: NDArray[np.int64] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


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


class ShardSearch:
    """Searches one shard of a version.

    Raises:
        DamagedError: if a file of the version differs from its manifest.
        UnsupportedError: if the version has an index and FAISS is not installed.
        ValueError: if there is no such shard.
    """

    def __init__(self, version: Version, shard: int, device: str = "cpu") -> None:
        similarity: Any = version.similarity.to(device)
        self.cutoff_support = version.family.cutoff_support
        self.device = device
        self._family, self._similarity = version.family, similarity
        items, indexes = version.shard(shard, similarity.num_components[1]), version.indexes(shard, device)
        if device == "cpu":
            items = replace(items, state=with_vectors_of(indexes, items.state))
        self._hold(items, indexes)

    def _hold(self, items: Items, indexes: Mapping[str, VectorIndex]) -> None:
        self.items = items
        self.item_ids = items.item_ids.prepare()
        state = map_tensors(lambda tensor: tensor.to(self.device), items.state)
        self.searcher = self._family.searcher(self._similarity, state, indexes)
        self.zeros: list[int] = self._family.zero_rows(items.state).tolist()

    def of_rows(self, rows: NDArray[np.int64]) -> "ShardSearch":
        """The search of some of the shard's items, one at least, as if there were no others, without its indexes."""
        found = copy(self)
        found._hold(self.items.taken(rows), {})
        return found

    def __len__(self) -> int:
        return len(self.item_ids)

    def search(self, query: AnyQuery, request: ShardRequest, exclude: Sequence[Sequence[ItemId]]) -> ShardResponse:
        """The wanted items of the shard for each query; fewer if exclusion leaves fewer."""
        excluded = self._rows_of(exclude)
        spec = request.spec(self._mask_of(excluded), self.device)
        began = time.perf_counter()
        with noted() as parts:
            found = self.searcher.search(self._here(query), spec, request.method, request.params)
            found = found if self.device == "cpu" else found.on("cpu")
        if self.cutoff_support.has_bounded_scores and not request.with_vectors:  # whose queries may be corrected
            found = found.as_cosines()
        if self.zeros:
            found = with_zeros_last(found, spec, self.zeros, excluded)
        seconds, scoring = time.perf_counter() - began, parts.get("score", 0.0)
        is_there = found.scores.numpy() > -np.inf
        rows, lengths = found.item_rows.numpy()[is_there], is_there.sum(axis=1).tolist()
        return ShardResponse(
            found=of_corpus(found, self.items.first_row) if self.items.first_row else found,
            item_ids=_lines(self.item_ids.take(rows), lengths),
            titles=_strings(self.items.titles, rows, lengths),
            num_searched=np.array([len(self) - len(set(own)) for own in excluded], np.int64),
            num_excluded=np.array([len(own) for own in excluded], np.int64),
            texts=_strings(self.items.texts, rows, lengths) if request.for_ranker else None,
            vectors=self._vectors(rows, lengths) if request.with_vectors else None,
            seconds={"candidates": seconds - scoring, "score": scoring},
        )

    def _vectors(self, rows: NDArray[np.int64], lengths: Sequence[int]) -> list[NDArray[np.float32]]:
        """The only component of the items of each query."""
        components: Any = self.searcher
        taken = components.items.taken(torch.from_numpy(rows)).components[:, 0].float().numpy(force=True)
        return np.split(taken, np.cumsum(lengths)[:-1])

    def log_sum_exp(
        self, query: AnyQuery, exclude: Sequence[Sequence[ItemId]], factor: float = 1.0
    ) -> NDArray[np.float64]:
        """Log sum exp of the training logits over `factor`, over the shard's items that are not excluded [B]."""
        total: NDArray[np.float64] = self.searcher.log_sum_exp(
            self._here(query), tempered(self.cutoff_support.logit, factor), self._mask_of(self._rows_of(exclude))
        ).numpy(force=True)
        return total

    def explain(self, query: AnyQuery, item_ids: Sequence[ItemId]) -> ShardExplanation:
        """Explain the scores of one query with the requested items that the shard holds."""
        found = self.item_ids.rows(item_ids)
        rows = found[found >= 0]
        explained = self.searcher.explain(self._here(query), rows.tolist())
        most = 1.0 if self.cutoff_support.has_bounded_scores else float("inf")
        scores = explained.scores[0].clamp(-most, most).tolist()
        most_of_pair = float("inf") if self.cutoff_support.width is None else most
        return ShardExplanation(
            items=self.item_ids.take(rows),
            titles=_taken(self.items.titles, rows),
            scores=[NO_COSINE if row in self.zeros else score for row, score in zip(rows, scores, strict=True)],
            cosines=explained.cosines[0].clamp(-most_of_pair, most_of_pair).tolist(),
            gates=explained.gates[0].tolist(),
        )

    def _here(self, query: AnyQuery) -> AnyQuery:
        if self.device == "cpu":
            return query
        return map_tensors(lambda tensor: tensor.to(self.device), query)

    def _mask_of(self, excluded: Sequence[Sequence[int]]) -> Mask | None:
        """The mask of excluded rows, and of items without a direction; None if there are none."""
        return Exclusions.of(excluded, self.zeros) if self.zeros or any(excluded) else None

    def _rows_of(self, exclude: Sequence[Sequence[ItemId]]) -> list[list[int]]:
        """The shard's rows of the excluded items that it holds."""
        if not any(exclude):
            return [[] for _ in exclude]
        found = self.item_ids.rows(itertools.chain.from_iterable(exclude)).tolist()
        return [[row for row in own if row >= 0] for own in _lines(found, list(map(len, exclude)))]


def _taken(column: pa.ChunkedArray | None, rows: NDArray[np.int64]) -> list[str] | None:
    """Some strings of a column; None if there is none."""
    return None if column is None else column.take(numbers_as_array(rows)).to_pylist()


def _strings(column: pa.ChunkedArray | None, rows: NDArray[np.int64], lengths: Sequence[int]) -> list[list[str]] | None:
    """The strings of a column for all queries, one after the other, as a list for each; None if there is no column."""
    taken = _taken(column, rows)
    return None if taken is None else _lines(taken, lengths)


def _lines(values: list[Value], lengths: Sequence[int]) -> list[list[Value]]:
    """Values of all queries, one after the other, as a list for each."""
    if len(lengths) == 1:
        return [values]
    rest = iter(values)
    return [list(itertools.islice(rest, length)) for length in lengths]
