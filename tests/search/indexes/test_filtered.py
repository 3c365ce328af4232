"""Indexes of FAISS under a filter: as many items as are wanted are found, or all that pass."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.indexes.probing import Only
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


FAR = ITEMS[:, 0] <= ITEMS[:, 0].quantile(0.01)


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def graph(request: pytest.FixtureRequest) -> FaissIndex:
    made = build(fit(HnswConfig(M=4, ef_construction=20, storage=request.param), ITEMS, NUM_ITEMS, 0), [ITEMS])
    return FaissIndex.read(made.data, made.error)


@pytest.mark.parametrize("of_beam", [200.0, 1.0], ids=["all vectors are scanned", "a wider beam is tried"])
def test_a_beam_that_finds_too_little_is_followed_by_more(
    graph: FaissIndex, of_beam: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever takes less time, unless the request names the beam; then the list is short. A scan proves its lists."""
    monkeypatch.setattr("rails_ray.search.indexes.hnsw.LARGEST_BEAM", 64)
    monkeypatch.setattr("rails_ray.search.indexes.hnsw.OF_BEAM", of_beam)
    spec = SearchSpec(K, at_least=K, mask=hiding(~FAR))
    short = graph.search(QUERIES, spec, SearchParams(ef_search=64))
    is_short = short.num_found() < K
    assert is_short.any()
    assert short.bound.isposinf().all()
    found = graph.search(QUERIES, spec)
    assert found.num_found().tolist() == [K] * len(QUERIES)
    if of_beam == 1:
        assert found.bound.isposinf().all()
        return
    left = FAR.nonzero()[:, 0]
    best = (QUERIES @ ITEMS[left].T).topk(K, dim=1)
    gap = found.gap(spec)
    for line in range(len(QUERIES)):
        if is_short[line]:
            assert found.reasons[line] is None
            assert found.scores[line].tolist() == pytest.approx(best.values[line].tolist(), abs=1e-3)
            assert gap[line] == pytest.approx(0, abs=2e-3)
            if graph.knows_scores:
                assert found.item_rows[line].tolist() == left[best.indices[line]].tolist()
        else:
            assert gap[line] == torch.inf


def test_what_each_query_excludes_is_passed_over_beside_a_filter(
    index: FaissIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some in its list, and more than are dropped from one; queries that exclude few are searched together."""
    monkeypatch.setattr("rails_ray.search.indexes.grown_lists.MOST_DROPPED", 20)
    made, of = list[int](), Only.of

    def counted(is_there: NDArray[np.bool_]) -> Only:
        made.append(int(is_there.sum()))
        return of(is_there)

    monkeypatch.setattr(Only, "of", counted)
    is_left = torch.rand(NUM_ITEMS, generator=torch.Generator().manual_seed(2)) < 0.5
    scores = (QUERIES @ ITEMS.T).masked_fill(~is_left, -torch.inf)
    best = scores.argsort(dim=1, descending=True)
    excluded = [best[line, : (0, 3, 5, 20, 21, 400, 1, 0)[line]].tolist() for line in range(len(QUERIES))]
    spec = SearchSpec(K, at_least=K, mask=Remaining.of(is_left, excluded))
    found = index.search(QUERIES, spec, SearchParams(nprobe=64) if index.kind.name == "ivf" else None)
    assert found.num_found().tolist() == [K] * len(QUERIES)
    for line, out in enumerate(excluded):
        rows = found.item_rows[line].tolist()
        assert is_left[rows].all()
        assert not {*rows} & {*out}
        wanted = best[line, len(out) : len(out) + K].tolist()
        if index.is_exact:
            assert rows == wanted
        else:
            assert len({*rows} & {*wanted}) >= 0.5 * K
    if index.kind.name != "flat":  # whose long lists are scanned
        num_left = int(is_left.sum())
        assert sorted(made)[:2] == [num_left - 400, num_left - 21]
        assert set(made[:1]) == {num_left}


def test_a_filter_that_passes_nothing(index: FaissIndex) -> None:
    mask = Remaining(torch.zeros(NUM_ITEMS, dtype=torch.bool), Exclusions.of([]))
    found = index.search(QUERIES, SearchSpec(K, at_least=K, mask=mask), SearchParams())
    assert found.num_found().tolist() == [0] * len(QUERIES)
    assert found.gap(SearchSpec(K)).tolist() == [0] * len(QUERIES)
