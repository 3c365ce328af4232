"""Indexes of FAISS under a filter: as many items as are wanted are found, or all that pass."""

import numpy as np
import pytest
import torch

from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.masks import Exclusions, Remaining
from rails_ray.search.spec import SearchSpec
from support.masks import hiding

NUM_ITEMS, K = 4000, 10
GENERATOR = torch.Generator().manual_seed(0)
ITEMS = torch.nn.functional.normalize(torch.randn(NUM_ITEMS, 16, generator=GENERATOR))
QUERIES = torch.nn.functional.normalize(torch.randn(8, 16, generator=GENERATOR))
KINDS = [
    FlatConfig(),
    FlatConfig(storage="sq8"),
    IvfConfig(nlist=64),
    IvfConfig(nlist=64, storage="sq8"),
    HnswConfig(M=8),
    HnswConfig(M=8, storage="fp16"),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda config: f"{config.kind} {config.storage}")
def index(request: pytest.FixtureRequest) -> FaissIndex:
    config: IndexConfig = request.param
    made = build(fit(config, ITEMS, NUM_ITEMS, 0), [ITEMS])
    return FaissIndex.read(made.data, made.error)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("which", ["any", "far"])
def test_lists_widen_until_enough_is_found(index: FaissIndex, share: float, which: str) -> None:
    """Whether items that pass lie anywhere, or on one side, far from most queries."""
    is_left = torch.rand(NUM_ITEMS, generator=torch.Generator().manual_seed(1)) < share
    if which == "far":
        is_left = ITEMS[:, 0] <= ITEMS[:, 0].quantile(share)
    mask, num_left = hiding(~is_left), int(is_left.sum())
    assert num_left, "a filter that passes nothing is another test"
    found = index.search(QUERIES, SearchSpec(K, at_least=K, mask=mask), SearchParams())
    assert found.num_found().tolist() == [min(K, num_left)] * len(QUERIES)
    for line, scores in enumerate((QUERIES @ ITEMS.T).tolist()):
        rows = found.item_rows[line, : min(K, num_left)].tolist()
        assert len(set(rows)) == len(rows)
        assert is_left[rows].all()
        best = sorted((score for row, score in enumerate(scores) if is_left[row]), reverse=True)[:K]
        if index.is_exact or num_left <= K:
            assert sorted([scores[row] for row in rows], reverse=True) == pytest.approx(best, abs=1e-5)
        else:  # its nearest lists, or most of the graph's best
            assert np.isin(np.round(best, 5), np.round([scores[row] for row in rows], 5)).mean() >= 0.2


def test_a_beam_that_finds_too_little_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the request names it; then the list is short."""
    monkeypatch.setattr("rails_ray.search.indexes.hnsw.LARGEST_BEAM", 64)
    made = build(fit(HnswConfig(M=4, ef_construction=20), ITEMS, NUM_ITEMS, 0), [ITEMS])
    graph = FaissIndex.read(made.data, made.error)
    spec = SearchSpec(K, at_least=K, mask=hiding(ITEMS[:, 0] > ITEMS[:, 0].quantile(0.003)))
    assert graph.search(QUERIES, spec).num_found().tolist() == [K] * len(QUERIES)
    assert graph.search(QUERIES, spec, SearchParams(ef_search=64)).num_found().min() < K


def test_a_filter_that_passes_nothing(index: FaissIndex) -> None:
    mask = Remaining(torch.zeros(NUM_ITEMS, dtype=torch.bool), Exclusions.of([]))
    found = index.search(QUERIES, SearchSpec(K, at_least=K, mask=mask), SearchParams())
    assert found.num_found().tolist() == [0] * len(QUERIES)
    assert found.gap(SearchSpec(K)).tolist() == [0] * len(QUERIES)
