"""A shard that says it is ready, and what its first client still waits for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.families.version import Version
from rails_ray.kernels import reaching
from rails_ray.kernels.compiled import loops
from rails_ray.modules.similarities.states import QueryState, take
from rails_ray.schema.search_params import SearchParams
from rails_ray.serving import local
from rails_ray.serving.shard_search import ShardRequest, ShardSearch
from rails_ray.storage.filesystem import Storage
from support.examples import publish_here


@pytest.mark.parametrize("method", ["brute_force", "two_pass", "gated"])
def test_no_search_compiles_what_the_start_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    called = set[tuple[Any, ...]]()

    class Watched:
        def __getattr__(self, name: str) -> Any:
            def call(*given: Any) -> None:
                types = [(one.dtype, one.flags["C_CONTIGUOUS"]) for one in given if isinstance(one, np.ndarray)]
                called.add((name, *types))  # numba compiles once for each of these
                getattr(loops(), name)(*given)

            return call

    monkeypatch.setattr(reaching, "loops_for", lambda *tensors: Watched())
    shard = ShardSearch(Version(Storage(str(tmp_path)), publish_here(tmp_path, num_shards=1)), 0)
    at_the_start = set(called)
    query = some_queries(shard, 2)
    for threshold in (None, -1.0, 0.5, 2.0):
        least = None if threshold is None else np.full(2, threshold, np.float32)
        shard.search(
            query,
            ShardRequest(method, SearchParams(), k=3, threshold=least, at_least=0 if least is None else 1),
            [[], []],
        )
    assert {name for name, *_ in at_the_start} == {"count_reaching", "list_reaching"}
    assert called == at_the_start


def test_some_rows_of_a_shard_are_searched_as_if_there_were_no_others(tmp_path: Path) -> None:
    """The others are excluded by their ids in the whole shard; of zeros, which no cosine compares, one is left."""
    vectors = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
    vectors[[3, 8]] = 0
    names = [f"title {row}" for row in range(30)]
    built = local.build(vectors, titles=names, folder=str(tmp_path), zero_vectors="keep", index="hnsw")
    [shard] = built.shards
    rows = np.array([0, 2, 8, 9, 20, 29])
    others = [row for row in range(30) if row not in rows]
    items: Any = take(shard.items.state, torch.tensor([0, 4]))
    queries = QueryState(items.components, None, torch.ones(2))
    request = ShardRequest("brute_force", SearchParams(), k=6)
    found, expected = (
        shard.of_rows(rows).search(queries, request, [[], [9]]),
        shard.search(queries, request, [others] * 2),
    )
    assert found.item_ids[0] == expected.item_ids[0]
    assert found.item_ids[1] == [item for item in expected.item_ids[1] if item != 9]
    assert found.titles is not None
    assert found.titles[0] == [names[int(item)] for item in found.item_ids[0]]
    assert found.item_ids[0][-1] == 8
    assert len(shard) == 30, "the shard itself is as it was"


def some_queries(shard: ShardSearch, num: int) -> QueryState:
    items: Any = shard.items.state
    components = items.components[:num, :1].expand(-1, 2, -1)
    return QueryState(components, torch.zeros(num, items.gate.shape[1]), torch.ones(num))
