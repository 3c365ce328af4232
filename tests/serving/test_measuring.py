"""Searches of a version, measured: recall as loops over all pairs have it, and times by a clock that is set by hand."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import oracles.recall
from rails_ray.errors import UnsupportedError
from rails_ray.families.version import Version
from rails_ray.families.version_queries import VersionQueries
from rails_ray.modules.similarities.states import QueryState
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.ladders import EF_SEARCH
from rails_ray.serving import local
from rails_ray.serving.measuring import (
    MOST_TIMED,
    SampledQueries,
    SearchMeasuring,
    measure_all,
    of_items,
    of_split,
    steps_of,
    usual_searches,
)
from rails_ray.serving.shard_messages import ShardRequest
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage.filesystem import Storage
from support.examples import publish_here

K = 5


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    folder = tmp_path_factory.mktemp("measured")
    publish_here(folder, num_shards=3)
    return Storage(str(folder))


@pytest.fixture(scope="module")
def shards(store: Storage) -> list[ShardSearch]:
    version = Version.published(store)
    return [ShardSearch(version, shard) for shard in range(3)]


@pytest.fixture(scope="module")
def read(store: Storage) -> VersionQueries:
    return VersionQueries.read(store, None, None, ["train"])


@pytest.fixture(scope="module")
def sample(read: VersionQueries, shards: list[ShardSearch]) -> SampledQueries:
    return of_split(read.queries("train"), read.model, shards, "train", 40)


class HandSetClock:
    """Time that passes in searches alone: so many seconds for a shard's first row and a number of candidates."""

    def __init__(self, took_s: Callable[[ShardSearch, ShardRequest, int], float]) -> None:
        self.took_s, self.now, self.num = took_s, 0.0, 0

    def __call__(self) -> float:
        return self.now

    def passing(self, monkeypatch: pytest.MonkeyPatch) -> "HandSetClock":
        search = ShardSearch.search

        def slowed(shard: ShardSearch, query: Any, request: ShardRequest, exclude: Any) -> Any:
            self.now += self.took_s(shard, request, self.num)
            self.num += 1
            return search(shard, query, request, exclude)

        monkeypatch.setattr(ShardSearch, "search", slowed)
        return self


def found_by(shards: list[ShardSearch], query: Any, request: ShardRequest) -> list[list[tuple[int, float]]]:
    """The best (row, score) pairs of all shards, by loops."""
    lists: list[list[tuple[int, float]]] = [[] for _ in range(len(query))]
    for shard in shards:
        found = shard.search(query, request, [[] for _ in range(len(query))]).found
        for number, (rows, scores) in enumerate(zip(found.item_rows.tolist(), found.scores.tolist(), strict=True)):
            lists[number] += [pair for pair in zip(rows, scores, strict=True) if pair[1] > -np.inf]
    return [sorted(line, key=lambda pair: (-pair[1], pair[0]))[: request.k] for line in lists]


def test_recall_and_certificates_are_those_of_loops(shards: list[ShardSearch], sample: SampledQueries) -> None:
    measuring = SearchMeasuring(shards, sample, K)
    for method, params in [("average", {"num_candidates": 5}), ("per_embedding", {"num_per_embedding": 2})]:
        own = measuring.measured(method, params)
        request, exactly = measuring._request(method, params), measuring._request("brute_force", {})
        lists = zip(found_by(shards, sample.state, request), found_by(shards, sample.state, exactly), strict=True)
        expected = [oracles.recall.recall(found, best) for found, best in lists]
        assert own.recall == pytest.approx(sum(expected) / len(sample))
        assert own.low < own.recall < own.high or own.recall in (0, 1)
        assert (own.num_queries, own.k, own.params) == (len(sample), K, params)
    assert 0 <= own.certified_fraction <= 1


def test_an_exact_method_misses_nothing(shards: list[ShardSearch], sample: SampledQueries) -> None:
    measuring = SearchMeasuring(shards, sample, K)
    for method in ("brute_force", "two_pass"):
        own = measuring.measured(method, {})
        assert (own.recall, own.low, own.high, own.certified_fraction) == (1, 1, 1, 1)
    whole = measuring.measured("average", {"num_candidates": 60})
    assert whole.recall == 1
    assert whole.low < 1, "it may miss an item of a larger corpus"


def test_time_is_the_median_of_the_slowest_shard(
    shards: list[ShardSearch], sample: SampledQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandSetClock(lambda shard, request, num: 0.001 * (1 + shard.items.first_row + num % 7))
    measuring = SearchMeasuring(shards, sample, K, clock.passing(monkeypatch))
    clock.num, first = 0, len(shards) * -(-len(sample) // 64)
    own = measuring.measured("average", {"num_candidates": 5})
    last = len(shards) - 1
    rows = [shard.items.first_row for shard in shards]
    took = [
        max(1 + rows[shard] + (first + turn * len(shards) + shard) % 7 for shard in range(last + 1))
        for turn in range(1, 1 + min(len(sample), MOST_TIMED))
    ]
    assert own.ms == pytest.approx(median(took))


def test_a_slow_search_is_timed_a_few_times(
    shards: list[ShardSearch], sample: SampledQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandSetClock(lambda shard, request, num: 10.0)
    measuring = SearchMeasuring(shards, sample, K, clock.passing(monkeypatch))
    clock.num = 0
    assert measuring.measured("brute_force", {}).ms == pytest.approx(10_000)
    assert clock.num == len(shards) * (1 + 6), "one batch, a search that warms up, and five"


def test_what_a_version_cannot_take_is_left_out(
    store: Storage, shards: list[ShardSearch], sample: SampledQueries
) -> None:
    measuring = SearchMeasuring(shards, sample, K)
    steps = [("brute_force", {}), ("average", {"num_candidates": 2}), ("average", {"num_candidates": 9}), ("ann", {})]
    measured, left_out = measure_all(measuring, steps)
    assert [own.method for own in measured] == ["brute_force", "average"]
    [sentence] = left_out
    assert sentence.startswith("ann: method must be one of brute_force, ")
    methods = shards[0].searcher.methods
    assert {method for method, _ in steps_of(Version.published(store), methods, K)} == set(methods)


@pytest.mark.parametrize(
    ("k", "message"),
    [(0, "k must be at least 1, got 0"), (61, "k must be at most the 60 items of the version, got 61")],
)
def test_a_k_that_cannot_be(shards: list[ShardSearch], sample: SampledQueries, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchMeasuring(shards, sample, k)


def test_queries_of_a_split_are_spread_and_say_something(read: VersionQueries, shards: list[ShardSearch]) -> None:
    queries = read.queries("train")
    sample = of_split(queries, read.model, shards, "train", 7)
    assert str(sample) == "7 queries of split train"
    with torch.no_grad():
        first = read.model.encode_queries(read.model.query_features([queries.inputs[0], queries.inputs[-1]]))
    state, _ = sample.some([0, 6])
    assert isinstance(state, QueryState)
    assert isinstance(first, QueryState)
    assert torch.allclose(state.average, first.average)


def test_seen_items_are_excluded_by_their_ids(read: VersionQueries, shards: list[ShardSearch]) -> None:
    from rails_ray.data.queries import ItemLists

    rows = [[0, 25, 59, 60], []]
    queries = read.queries("train").head(2)
    seen = type(queries)(queries.inputs, queries.relevant, ItemLists.of(rows), exclude_seen=True)
    sample = of_split(seen, read.model, shards, "train", 2)
    ids = [own for shard in shards for own in shard.item_ids]
    assert [list(own) for own in sample.exclude] == [[ids[row] for row in own if row < 60] for own in rows]


def test_items_are_queries_where_both_are_vectors(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    local.build(vectors, folder=str(tmp_path))
    sample = of_items(Version.published(Storage(str(tmp_path))), 10)
    assert str(sample) == "10 of its items as queries"
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    own = np.unique(np.linspace(0, 49, 10).astype(int))
    state: Any = sample.state
    assert np.allclose(state.components[:, 0].numpy(), directions[own], atol=1e-6)


def test_items_without_a_direction_are_no_queries(tmp_path: Path) -> None:
    vectors = np.eye(6, dtype=np.float32)
    vectors[2] = 0
    local.build(vectors, folder=str(tmp_path), zero_vectors="keep")
    assert len(of_items(Version.published(Storage(str(tmp_path))), 10)) == 5
    local.build(0 * vectors, folder=str(tmp_path), version="zeros", zero_vectors="keep")
    with pytest.raises(UnsupportedError, match="version zeros must have queries to measure its searches"):
        of_items(Version.published(Storage(str(tmp_path))), 10)


def test_items_of_a_mixture_are_no_queries(store: Storage) -> None:
    with pytest.raises(UnsupportedError, match="version v1 must have queries to measure its searches, or items that"):
        of_items(Version.published(store), 10)


def test_the_usual_searches_of_a_version(store: Storage, read: VersionQueries, shards: list[ShardSearch]) -> None:
    found = usual_searches(Version.published(store), read.model, read.queries("train").head(4), "train")
    assert [own.method for own in found if own.k == 10] == list(shards[0].searcher.methods)
    assert {own.k for own in found} == {10, 60}, "there are no 100 items"
    assert all(own.params == {} for own in found)


def test_ann_is_tried_with_beams_and_where_the_index_rounds_with_candidates_too() -> None:
    def steps(index: Any) -> list[Any]:
        version: Any = SimpleNamespace(
            family=SimpleNamespace(index_config=index), described=SimpleNamespace(shard_items=[1000, 900])
        )
        return [step for _, step in steps_of(version, ["ann"], 10)]

    assert steps(None) == [{}]
    assert steps(HnswConfig()) == [{"ef_search": beam} for beam in EF_SEARCH]
    widths = [{"num_candidates": num} for num in (10, 20, 40, 100)]
    assert steps(FlatConfig(storage="sq8")) == widths
    assert steps(HnswConfig(storage="fp16")) == [{**one, "ef_search": beam} for one in widths for beam in EF_SEARCH]
