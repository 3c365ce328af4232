"""What FAISS's indexes find and what bounds they give, beside the contract of `tests/contracts/test_index.py`."""

from typing import Any

import faiss
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes import faiss_index, grown_lists
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.grown_lists import Growth
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.masks import Exclusions
from rails_ray.search.spec import SearchSpec
from support.faiss_indexes import ALL_LISTS, WIDTH, built, check_equals_oracle, kinds, opened, storages, stored, vectors
from support.masks import hiding

# Equals the oracle


@storages
@pytest.mark.parametrize("kind", [FlatConfig, IvfConfig])
@given(st.integers(0, 40), st.sampled_from([0, 1, 3, 21]), st.integers(0, 99), st.data())
def test_all_that_is_looked_at_equals_the_oracle(
    kind: type, storage: Any, num_items: int, num_queries: int, seed: int, data: st.DataObject
) -> None:
    """Flat, and ivf with nprobe = nlist: thresholds, exclusions that are dropped and others that FAISS passes over.
    FAISS takes another way from 20 queries on."""
    config = kind(storage=storage) if kind is FlatConfig else kind(storage=storage, nlist=6)
    index = opened(config, vectors(num_items, seed))
    queries = vectors(num_queries, seed + 1)
    k = data.draw(st.integers(1, num_items + 2))
    row = st.lists(st.integers(0, max(num_items - 1, 0)), max_size=12 if num_items else 0, unique=True)
    excluded = [data.draw(row) for _ in range(min(num_queries, 3))] + [[] for _ in range(num_queries - 3)]
    threshold = torch.tensor(
        [data.draw(st.sampled_from([-torch.inf, torch.inf, 0.1])) for _ in range(min(num_queries, 3))]
        + [0.3] * max(num_queries - 3, 0)
    )
    mask = Exclusions.of(excluded)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grown_lists, "MOST_DROPPED", data.draw(st.sampled_from([0, 3, 1000])))
        patched.setattr(index.kind, "growth", Growth(data.draw(st.sampled_from([1, 256])), 2, is_loose=False))
        patched.setattr(faiss_index, "LONGEST_LIST", data.draw(st.sampled_from([1, 4, 1000])))
        patched.setattr(faiss_index, "MOST_PLACES", data.draw(st.sampled_from([1, 60, 10**6])))
        patched.setattr(grown_lists, "SPARE", data.draw(st.sampled_from([0, 2])))
        for spec in (SearchSpec(k, mask=mask), SearchSpec(k, threshold, data.draw(st.integers(0, k)), mask)):
            found = index.search(queries, spec, ALL_LISTS)
            check_equals_oracle(found, index, queries, spec, excluded)
            assert found.num_scored.tolist() == [num_items] * num_queries
            assert found.reasons == [None] * num_queries


@kinds
def test_a_bitmap_that_hides_most_items(config: IndexConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    items, queries = vectors(300), vectors(5, 1)
    index = opened(config, items)
    is_hidden = torch.arange(300) % 10 > 0
    hidden = is_hidden.nonzero()[:, 0].tolist()
    for most in (1000, 10):
        monkeypatch.setattr(grown_lists, "MOST_DROPPED", most)
        for spec in (
            SearchSpec(7, mask=hiding(is_hidden)),
            SearchSpec(9, torch.full((5,), 0.1), 2, hiding(is_hidden)),
        ):
            found = index.search(queries, spec, SearchParams(nprobe=6, ef_search=300))
            check_equals_oracle(found, index, queries, spec, [hidden] * 5)


@kinds
def test_hidden_items_that_are_shared_or_ones_own_are_as_one_by_one(config: IndexConfig) -> None:
    """Queries with many hidden items are asked apart; all come back in their places."""
    index, queries = opened(config, vectors(3000)), vectors(4, 1)
    rows = [list(range(0, 3000, 2)), [], list(range(1, 3000, 2)), list(range(0, 3000, 2))]
    together = index.search(queries, SearchSpec(5, mask=Exclusions.of(rows)))
    for line, own in enumerate(rows):
        alone = index.search(queries[line : line + 1], SearchSpec(5, mask=Exclusions.of([own])))
        assert torch.equal(together.item_rows[line], alone.item_rows[0])
        assert not {*together.item_rows[line].tolist()} & {*own}


@pytest.mark.parametrize("config", [FlatConfig(), IvfConfig(nlist=6)], ids=["flat", "ivf"])
@pytest.mark.parametrize("longest", [1, 100, 10_000], ids="longest list {}".format)
def test_equal_scores_by_the_lower_row(config: IndexConfig, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more items tie with the last place than it has room for."""
    items = torch.cat([vectors(700), torch.ones(900, WIDTH), vectors(30, 2), torch.ones(5, WIDTH)])
    index = opened(config, items)
    query = torch.ones(2, WIDTH)
    num = 6
    for spec in (
        SearchSpec(num),
        SearchSpec(num, torch.tensor([8.0, -1.0])),
        SearchSpec(num, torch.full((2,), torch.inf), num),
    ):
        found = index.search(query, spec, ALL_LISTS)
        assert found.item_rows.tolist() == [list(range(700, 706))] * 2
    every = index.search(query, SearchSpec(2000, torch.full((2,), 8.0)), ALL_LISTS)
    assert every.item_rows[1].tolist() == [*range(700, 1600), *range(1630, 1635)]
    assert not every.is_truncated.any()
    monkeypatch.setattr(faiss_index, "LONGEST_LIST", longest)
    queries = torch.stack([query[0], torch.zeros(WIDTH), query[0], torch.zeros(WIDTH)])  # to which all items are equal
    for spec in (SearchSpec(3), SearchSpec(3, torch.tensor([9.0, 0.0, 8.0, -torch.inf]), at_least=1)):
        found = index.search(queries, spec, ALL_LISTS)
        assert found.item_rows[[1, 3]].tolist() == [[0, 1, 2]] * 2
        assert found.item_rows[2].tolist() == [700, 701, 702]
        assert found.item_rows[0, : int(found.num_found()[0])].tolist() in ([700, 701, 702], [700])
        assert found.is_truncated.tolist() == [spec.threshold is None, True, True, True]


def test_more_lists_never_find_worse_items() -> None:
    index, queries = opened(IvfConfig(nlist=20), vectors(2000)), vectors(50, 1)
    before = index.search(queries, SearchSpec(10), SearchParams(nprobe=1))
    for nprobe in range(2, 21):
        found = index.search(queries, SearchSpec(10), SearchParams(nprobe=nprobe))
        assert (found.scores >= before.scores - 1e-6).all()
        assert (found.num_scored >= before.num_scored).all()
        before = found
    assert before.num_scored.tolist() == [2000] * 50


def test_recall_grows_with_the_beam() -> None:
    items, queries = torch.randn(3000, 16, generator=torch.Generator().manual_seed(0)), vectors(50, 1, 16)
    index, exact = opened(HnswConfig(M=4), items), opened(FlatConfig(), items).search(queries, SearchSpec(10))
    recall = []
    for ef_search in (10, 20, 80, 640):
        found = index.search(queries, SearchSpec(10), SearchParams(ef_search=ef_search)).item_rows
        recall.append((found[:, :, None] == exact.item_rows[:, None]).any(2).float().mean().item())
    assert recall == sorted(recall)
    assert recall[0] < 0.9 < 0.98 < recall[-1]


def test_a_threshold_finds_all_in_the_lists_that_are_scanned() -> None:
    """Far more than the first list holds."""
    index, queries = opened(IvfConfig(nlist=6), vectors(4000)), vectors(3, 1)
    two = SearchParams(nprobe=2)
    reached = index.search(queries, SearchSpec(4000), two)
    assert (reached.num_found() == reached.num_scored).all()
    for place in (10, 400, 900):
        threshold = reached.scores[:, place].clone()
        found = index.search(queries, SearchSpec(4000, threshold), two)
        assert found.num_found().tolist() == [place + 1] * 3
        assert torch.equal(found.item_rows, reached.item_rows[:, : place + 1])
        capped = index.search(queries, SearchSpec(place, threshold), two)
        assert capped.is_truncated.all()
        assert torch.equal(capped.item_rows, reached.item_rows[:, :place])


def test_a_threshold_in_a_graph_is_not_cut_by_the_beam() -> None:
    """FAISS's own range search stops where the beam does."""
    items, queries = F.normalize(vectors(4000, width=16)), F.normalize(vectors(3, 1, 16))
    data, error = built(HnswConfig(), items)
    threshold = opened(FlatConfig(), items).search(queries, SearchSpec(1000)).scores[:, -1]
    found = FaissIndex.read(data, error).search(queries, SearchSpec(4000, threshold))
    assert (found.num_found() >= 980).all()
    theirs = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    theirs.hnsw.efSearch = 64
    for line in range(3):
        limits, _, _ = theirs.range_search(queries[line : line + 1].numpy(), float(threshold[line]))
        assert limits[1] < 900


@kinds
@pytest.mark.parametrize("num_items", [0, 1])
def test_few_items(config: IndexConfig, num_items: int) -> None:
    items = vectors(num_items)
    index, queries = opened(config, items), torch.ones(2, WIDTH)
    every = SearchParams(nprobe=6)
    best = index.search(queries, SearchSpec(3), every)
    above = index.search(queries, SearchSpec(3, torch.tensor([-torch.inf, torch.inf]), 1), every)
    hidden = index.search(queries, SearchSpec(3, mask=Exclusions.of([[0], []])), every)
    assert best.item_rows.tolist() == above.item_rows.tolist() == [[0] * num_items] * 2
    assert best.num_found().tolist() == above.num_found().tolist() == [num_items] * 2
    assert hidden.num_found().tolist() == [0, num_items]
    for found in (best, above, hidden):
        assert found.bound.tolist() == [-torch.inf] * 2
        assert not found.is_truncated.any()
    none = index.search(queries[:0], SearchSpec(3), every)
    assert none.item_rows.shape == (0, num_items)


@kinds
def test_more_items_than_there_are(config: IndexConfig) -> None:
    found = opened(config, vectors(20)).search(vectors(2, 1), SearchSpec(50), ALL_LISTS)
    assert found.item_rows.sort(dim=1).values.tolist() == [list(range(20))] * 2


@kinds
def test_a_query_that_is_not_finite_finds_nothing_for_itself(config: IndexConfig) -> None:
    index, queries = opened(config, vectors(50)), vectors(3, 1)
    queries[1] = torch.nan
    for spec in (SearchSpec(4), SearchSpec(50, torch.zeros(3), 2)):
        assert index.search(queries, spec).num_found()[1] == 0
        assert torch.equal(
            index.search(queries[2:], SearchSpec(4)).item_rows[0], index.search(queries, SearchSpec(4)).item_rows[2]
        )


# Bounds


@storages
@pytest.mark.parametrize("kind", [FlatConfig, IvfConfig])
@given(st.integers(1, 40), st.integers(0, 99), st.floats(1e-2, 1e2), st.data())
def test_no_item_that_was_passed_over_scores_above_the_bound(
    kind: type, storage: Any, num_items: int, seed: int, scale: float, data: st.DataObject
) -> None:
    """In float64, of the vectors that were given, which may lie outside the range of the sample."""
    items, queries = vectors(num_items, seed) * scale, vectors(4, seed + 1)
    config = kind(storage=storage) if kind is FlatConfig else kind(storage=storage, nlist=6)
    index = FaissIndex.read(*build(fit(config, vectors(20, seed + 2), num_items, 0), [items]))
    k = data.draw(st.integers(1, num_items))
    threshold = torch.tensor([data.draw(st.floats(-1, 1, width=32)) for _ in queries])
    mask = Exclusions.of([[0], [], [], []])
    exact = queries.double() @ items.double().T
    exact[0, 0] = -torch.inf
    for spec in (SearchSpec(k, mask=mask), SearchSpec(k, threshold, data.draw(st.integers(0, k)), mask)):
        found = index.search(queries, spec, ALL_LISTS)
        for line in range(4):
            is_missing = torch.ones(num_items, dtype=torch.bool)
            is_missing[found.item_rows[line, : int(found.num_found()[line])]] = False
            missing = exact[line, is_missing]
            missing = missing[missing > -torch.inf]
            if storage != "fp32":
                assert (missing <= found.bound[line].double()).all()
                assert found.bound[line] < torch.inf
                assert (found.bound[line] == -torch.inf) == (not len(missing))
        if storage == "fp32":
            assert found.bound.tolist() == [-torch.inf] * 4
        assert found.reasons == [None] * 4
    assert index.is_exact == (config == FlatConfig())


def test_the_bound_is_the_last_score_and_what_rounding_hides() -> None:
    data, error = built(FlatConfig(storage="sq8"), vectors(100))
    distance = (stored(FaissIndex.read(data, error)) - vectors(100)).norm(dim=1).max()
    assert distance < error < distance + 1e-4
    query = 2 * vectors(1, 1)
    found = FaissIndex.read(data, error).search(query, SearchSpec(10))
    assert found.bound.tolist() == pytest.approx([float(found.scores[0, -1] + error * query.norm())])
    assert found.gap(SearchSpec(10)).tolist() == pytest.approx([float(error * query.norm())], abs=1e-6)
    above = FaissIndex.read(data, error).search(query, SearchSpec(100, torch.tensor([0.5])))
    assert above.bound.tolist() == pytest.approx([float(0.5 + error * query.norm())])
    assert not above.is_truncated.any()


@pytest.mark.parametrize(("config", "article"), [(IvfConfig(nlist=6), "an ivf"), (HnswConfig(), "an hnsw")])
def test_nothing_is_known_of_items_that_were_not_looked_at(config: IndexConfig, article: str) -> None:
    index, queries = opened(config, vectors(40)), vectors(2, 1)
    found = index.search(queries, SearchSpec(3), SearchParams(nprobe=2))
    assert found.bound.tolist() == [torch.inf] * 2
    assert found.reasons == [f"candidates by {article} index, which may pass over any item"] * 2
    assert not index.is_exact
