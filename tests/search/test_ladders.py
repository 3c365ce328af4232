"""What is tried of each method: parameters that it may have, from little work to much, each once."""

from typing import get_args

import pytest

from rails_ray.schema.requests import Method
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.ladders import ladder

EXACT = ("brute_force", "two_pass")


@pytest.mark.parametrize("index", ["flat", "ivf", "hnsw"])
@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize(("k", "num_items"), [(10, 100_000), (10, 30), (1, 1)])
def test_each_step_is_a_search_of_its_own(method: str, index: str, k: int, num_items: int) -> None:
    steps = ladder(method, k, num_items, index)
    assert steps
    assert len({tuple(sorted(step.items())) for step in steps}) == len(steps)
    for step in steps:
        params = SearchParams(**step)
        assert k <= params.num_scored or params.num_candidates is None
        assert step.get("num_candidates", 1) <= num_items
        assert step.get("num_per_embedding", 1) <= num_items
    work = [tuple(step.values()) for step in steps]
    assert work == sorted(work)
    assert (steps == [{}]) == (method in EXACT or (method, index) == ("ann", "flat"))


def test_an_index_adds_what_it_looks_at() -> None:
    assert {"nprobe": 16, "num_candidates": 40} in ladder("average", 10, 1000, "ivf")
    assert {"ef_search": 256, "num_candidates": 40} in ladder("average", 10, 1000, "hnsw")
    assert {"ef_search": 128} in ladder("ann", 10, 1000, "hnsw")
    assert {"num_candidates": 40, "nprobe": 8} in ladder("ann", 10, 1000, "ivf", is_rounded=True)
