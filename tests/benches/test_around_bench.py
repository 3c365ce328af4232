"""The bench of what lies around a search: each layer has a time, and does its work."""

import numpy as np
import pytest

from jobs.benches.around import Arguments, asking, carried_out, measured
from rails_ray import local
from rails_ray.serving.stages import timed

LAYERS = ["search", "read", "validate", "generator", "timers", "batching", "results", "metrics", "write", "orjson"]


@pytest.mark.parametrize("num_queries", [1, 32])
def test_each_layer_has_a_time(num_queries: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((60, 8), dtype=np.float32)
    few = Arguments(num_items=60, width=8, loops=1, calls=3)
    found = dict(measured(local.build(vectors, index="hnsw"), vectors[:num_queries], few))
    assert list(found) == LAYERS
    assert all(found[layer] > 0 for layer in LAYERS if layer not in ("timers", "batching", "metrics"))


def test_rounds_are_carried_out_to_their_value() -> None:
    assert carried_out(asking()) == 0
    value, stages = carried_out(timed(asking()))
    assert value == 0
    assert stages["shards"] >= 0
