"""A shard that says it is ready, and what its first client still waits for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.families.version import Version
from rails_ray.kernels import reaching
from rails_ray.kernels.compiled import loops
from rails_ray.modules.similarities.states import QueryState
from rails_ray.schema.search_params import SearchParams
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


def some_queries(shard: ShardSearch, num: int) -> QueryState:
    items: Any = shard.items.state
    components = items.components[:num, :1].expand(-1, 2, -1)
    return QueryState(components, torch.zeros(num, items.gate.shape[1]), torch.ones(num))
