"""Measure the searches of a version in this process: recall against brute force, certificates, and time.

Recall is that of many queries in batches, and the time of a few of them is measured one at a time: that of the slowest
shard, as shards are searched at the same time. Encoding a query and writing its answer, which no method changes, are
not counted.

Axes: B queries.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.counting import advance
from rails_ray.data.encoding import query_batches
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.errors import UnsupportedError
from rails_ray.families.version import Version
from rails_ray.item_ids import ItemId
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyQuery, concatenate, take, to
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.ladders import Step, ladder
from rails_ray.search.measured import SearchFigures, recalls
from rails_ray.search.sharded import merge
from rails_ray.search.spec import SearchResult
from rails_ray.serving.encoder import QueryEncoder
from rails_ray.serving.running_means import RunningMean
from rails_ray.serving.search_defaults import USUAL
from rails_ray.serving.shard_messages import ShardRequest
from rails_ray.serving.shard_search import ShardSearch

BATCH = 64  # queries searched at a time, for recall
FEWEST_TIMED, MOST_TIMED = 5, 50  # queries searched one at a time
MOST_EVALUATED, EVALUATED_AT = 200, (10, 100)  # queries and k of an evaluation
OF_SEVERAL = ("per_embedding", "average", "combined")  # with one component, all look up the index of `ann`
LONGEST_S = 2.0  # after the fewest, timing of a search ends


@dataclass(frozen=True)
class SampledQueries:
    """
    state: encoded queries.
    exclude: ids of the items that the answer to each query may not hold.
    kind: what they are, in words that go after their number.
    """

    state: AnyQuery
    exclude: Sequence[Sequence[ItemId]]
    kind: str

    def __len__(self) -> int:
        return len(self.state)

    def __str__(self) -> str:
        return f"{len(self):,} {self.kind}"

    def some(self, rows: Sequence[int]) -> tuple[AnyQuery, Sequence[Sequence[ItemId]]]:
        """The state and the exclusions of some of them."""
        return take(self.state, torch.tensor(rows)), [self.exclude[row] for row in rows]


def of_split(queries: Queries, model: Model, shards: Sequence[ShardSearch], split: str, most: int) -> SampledQueries:
    """Queries of a split, spread over it, without those that say nothing.

    Args:
        queries: with items as rows of the version.
        most: how many at most.

    Raises:
        ValueError: if no query says anything.
    """
    known = known_queries(queries, model)
    if not known:
        raise ValueError(f"split {split} must have a query that is not blank to the model, got none: name other data")
    numbers = spread(known, most)
    excluded = queries.excluded
    exclude = [[] for _ in numbers] if excluded is None else _ids_of(excluded.take(numbers), shards)
    return SampledQueries(encoded(model, queries, numbers), exclude, f"queries of split {split}")


def known_queries(queries: Queries, model: Model) -> list[int]:
    """The numbers of the queries that say something."""
    return [number for number in range(len(queries)) if not model.is_blank(queries.inputs[number])]


def spread(numbers: Sequence[int], most: int) -> NDArray[np.int64]:
    """At most so many of some numbers, evenly spread over them."""
    places = np.unique(np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(int))
    found: NDArray[np.int64] = np.array(numbers)[places]
    return found


def encoded(model: Model, queries: Queries, numbers: NDArray[np.int64]) -> AnyQuery:
    """The state of some of the queries, on the CPU."""
    return concatenate([to(state, "cpu") for _, state in query_batches(model, queries.inputs.take(numbers))])


def of_items(version: Version, most: int) -> SampledQueries:
    """Stored vectors of items as queries, spread over the version.

    Raises:
        UnsupportedError: if its queries are no vectors that its items have too.
    """
    found = of_vectors(version, item_vectors(version, most), "of its items as queries")
    if found is None:
        raise UnsupportedError(
            f"version {version.name} must have queries to measure its searches, or items that are vectors as queries "
            "are, got neither: name data that has queries with --folder"
        )
    return found


def item_vectors(version: Version, most: int) -> NDArray[np.float32]:
    """Stored vectors of items, spread over the version [n, D]; none if an item has not exactly one."""
    if version.described.state.shapes.get("components", [0])[0] != 1:
        return np.empty((0, 0), np.float32)
    rows, first, found = spread(range(version.described.num_live), most), 0, []
    for _, vectors in version.vectors().blocks:
        own = rows[(rows >= first) & (rows < first + len(vectors))] - first
        found.append(vectors[own])
        first += len(vectors)
    chosen = np.concatenate(found).astype(np.float32)
    return chosen[chosen.any(axis=1)]  # zeros compare with nothing


def of_vectors(version: Version, vectors: NDArray[np.float32], kind: str) -> SampledQueries | None:
    """Vectors as queries; None if there are none, or the version does not take them."""
    read = QueryEncoder(version).of_vectors(vectors) if len(vectors) else None
    return None if read is None else SampledQueries(read.state, [[] for _ in vectors], kind)


class SearchMeasuring:
    """Measures searches of a version for the k best items against brute force.

    Args:
        shards: all shards of the version.

    Raises:
        ValueError: if k is below 1, or above the number of items.
    """

    def __init__(
        self,
        shards: Sequence[ShardSearch],
        sample: SampledQueries,
        k: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_k(k, sum(map(len, shards)))
        self.shards, self.sample, self.k, self.clock = shards, sample, k, clock
        self.best = list(self._found(self._request(USUAL, {})))

    def measured(self, method: str, params: Mapping[str, int]) -> SearchFigures:
        """Measure one search.

        Raises:
            ValueError: if the version cannot search so.
        """
        request = self._request(method, params)
        spec, mean, num_certified = request.spec(), RunningMean(), 0
        for found, best in zip(self._found(request), self.best, strict=True):
            num_certified += int((found.gap(spec) == 0).sum())
            for share in recalls(found, best):
                mean = mean.plus(share)
        assert mean.mean is not None
        assert mean.low is not None
        assert mean.high is not None
        low, high = mean.low, mean.high
        if all(shard.searcher.retriever(method, request.params).is_exact for shard in self.shards):
            low = high = mean.mean
        certified = num_certified / mean.num_queries
        return SearchFigures(
            method, dict(params), self.k, mean.num_queries, mean.mean, low, high, certified, self._ms(request)
        )

    def _request(self, method: str, params: Mapping[str, int]) -> ShardRequest:
        return ShardRequest(method, SearchParams.of_request({"method": method, **params}, self.k), self.k)

    def _found(self, request: ShardRequest) -> Iterator[SearchResult]:
        """The merged answers to all queries, a batch after the other."""
        for first in range(0, len(self.sample), BATCH):
            query, exclude = self.sample.some(range(first, min(first + BATCH, len(self.sample))))
            answers = [shard.search(query, request, exclude) for shard in self.shards]
            num_left = torch.from_numpy(np.sum([answer.num_searched for answer in answers], axis=0))
            yield merge([answer.found for answer in answers], request.spec(), num_left)

    def _ms(self, request: ShardRequest) -> float:
        """The median time of one query, of the slowest shard, in milliseconds."""
        seconds = list[float]()
        for row in [0, *range(min(MOST_TIMED, len(self.sample)))]:  # the first search warms up
            query, exclude = self.sample.some([row])
            seconds.append(max(self._seconds(shard, query, request, exclude) for shard in self.shards))
            if len(seconds) > FEWEST_TIMED and sum(seconds) > LONGEST_S:
                break
        return 1000 * median(seconds[1:])

    def _seconds(
        self, shard: ShardSearch, query: AnyQuery, request: ShardRequest, exclude: Sequence[Sequence[ItemId]]
    ) -> float:
        began = self.clock()
        shard.search(query, request, exclude)
        return self.clock() - began


def check_k(k: int, num_items: int) -> None:
    """Raises:
    ValueError: if k is below 1, or above the number of items.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if k > num_items:
        raise ValueError(f"k must be at most the {num_items:,} items of the version, got {k:,}")


def steps_of(version: Version, methods: Sequence[str], k: int) -> list[tuple[str, Step]]:
    """The searches to try of each method that a version offers, a ladder each.

    Args:
        methods: their names.
        k: items that are wanted.
    """
    index, largest = version.family.index_config, max(version.described.shard_items)
    kind, is_rounded = ("flat", False) if index is None else (index.kind, getattr(index, "storage", "fp32") != "fp32")
    steps = list[tuple[str, Step]]()
    for method in methods:
        is_twin = "ann" in methods and method in OF_SEVERAL
        own = [{}] if is_twin else ladder(method, k, largest, kind, is_rounded=is_rounded)
        steps += [(method, step) for step in own]
    return steps


def measure_all(measuring: SearchMeasuring, steps: Sequence[tuple[str, Step]]) -> tuple[list[SearchFigures], list[str]]:
    """Measure searches; a sentence for each method of which the version takes none of the steps."""
    measured, refusals = list[SearchFigures](), dict[str, str]()
    for number, (method, params) in enumerate(steps, start=1):
        try:
            measured.append(measuring.measured(method, params))
        except ValueError as error:  # more lists or buckets than there are, or fewer candidates than it takes
            refusals[method] = str(error)
        advance(number, len(steps), f"searches, {method}")
    taken = {own.method for own in measured}
    return measured, [f"{method}: {why}" for method, why in refusals.items() if method not in taken]


def _ids_of(lists: ItemLists, shards: Sequence[ShardSearch]) -> list[list[ItemId]]:
    """The ids of items by their numbers among those of the version that are not hidden; others are left out."""
    live = [shard.held.live_rows() for shard in shards]
    found = []
    for numbers in lists:
        ids, first = list[ItemId](), 0
        for shard, rows in zip(shards, live, strict=True):
            own = numbers - first
            ids += shard.item_ids.take(rows[own[(own >= 0) & (own < len(rows))]])
            first += len(rows)
        found.append(ids)
    return found


def usual_searches(version: Version, model: Model, queries: Queries, split: str) -> list[SearchFigures]:
    """Measure each method of a version with its usual parameters, for 10 and 100 items or as many as there are.

    Args:
        queries: of the split, of which MOST_EVALUATED measure, with items as rows of the version.
    """
    shards = [ShardSearch(version, shard) for shard in range(version.num_shards)]
    found = list[SearchFigures]()
    if all(model.is_blank(queries.inputs[number]) for number in range(len(queries))):
        return found
    sample = of_split(queries, model, shards, split, MOST_EVALUATED)
    for k in sorted({min(k, version.described.num_live) for k in EVALUATED_AT}):
        steps: list[tuple[str, Step]] = [(method, {}) for method in shards[0].searcher.methods]
        found += measure_all(SearchMeasuring(shards, sample, k), steps)[0]
    return found
