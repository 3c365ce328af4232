"""Support selection: every member, and each against its definition."""

import sys
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.relevance
from rails_ray.errors import UnsupportedError
from rails_ray.reranking.l2_greedy import l2_greedy
from rails_ray.reranking.supports import (
    ClusterSupports,
    FirstSupports,
    L2GreedySupports,
    MostDiverseSupports,
    PopularSupports,
    RandomSupports,
    Selection,
    SupportsConfig,
    select_supports,
)
from support.quantizers import some_vectors
from support.tried import tried

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:sklearn")  # graphs in parts, equal points

METHODS = get_args(ClusterSupports.__annotations__["method"])
MEMBERS: dict[str, Selection] = {
    "random": RandomSupports(),
    "first": FirstSupports(),
    "popular": PopularSupports(),
    "most_diverse": MostDiverseSupports(),
    "l2_greedy": L2GreedySupports(),
    "l2_greedy, float32": L2GreedySupports(dtype="float32"),
    **{method: ClusterSupports(method=method) for method in METHODS},
}
members = pytest.mark.parametrize("selection", MEMBERS.values(), ids=MEMBERS)


def matrix(num_items: int = 60, num_queries: int = 30, rank: int = 5, seed: int = 0) -> torch.Tensor:
    """Relevances with a structure, and noise."""
    low = some_vectors(num_items, rank, seed) @ some_vectors(rank, num_queries, seed + 1)
    return low + 0.1 * some_vectors(num_items, num_queries, seed + 2)


def test_every_kind_is_in_the_suite() -> None:
    assert {type(selection) for selection in MEMBERS.values()} == set(get_args(SupportsConfig))


@members
def test_supports_are_rows_each_once_and_equal_for_equal_seeds(selection: Selection) -> None:
    relevance = matrix()
    for num_supports in (1, 7):
        if num_supports == 1 and getattr(selection, "method", "").startswith("spectral"):
            continue
        rows = select_supports(selection, relevance, num_supports, seed=3)
        assert rows.dtype == torch.int64
        assert len(set(rows.tolist())) == num_supports
        assert 0 <= int(rows.min()) <= int(rows.max()) < 60
        assert torch.equal(select_supports(selection, relevance, num_supports, seed=3), rows)


@members
def test_supports_from_some_of_the_items(selection: Selection) -> None:
    relevance = matrix(200)
    rows = select_supports(selection, relevance, 5, seed=1, num_candidates=50)
    assert len(set(rows.tolist())) == 5
    assert torch.equal(select_supports(selection, relevance, 5, seed=1, num_candidates=50), rows)
    other = select_supports(selection, relevance, 5, seed=2, num_candidates=50)
    assert not torch.equal(rows, other), "another seed draws other candidates"


@tried(30)
@given(st.integers(2, 9), st.integers(2, 7), st.integers(1, 5), st.integers(0, 99))
def test_l2_greedy_picks_what_its_definition_picks(num_items: int, num_queries: int, num: int, seed: int) -> None:
    relevance = some_vectors(num_items, num_queries, seed).double()
    num = min(num, num_items, num_queries)
    rows = l2_greedy(relevance, num).tolist()
    expected = oracles.relevance.l2_greedy(relevance.numpy(), num)
    for size in range(1, num + 1):  # level within rounding
        errors = [oracles.relevance.error_of_supports(relevance.numpy(), own[:size]) for own in (rows, expected)]
        assert errors[0] == pytest.approx(errors[1], rel=1e-6, abs=1e-8)


def test_l2_greedy_leaves_what_is_in_the_span_until_last() -> None:
    relevance = torch.tensor([[1.0, 0, 0], [2, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]], dtype=torch.float64)
    rows = l2_greedy(relevance, 5).tolist()
    assert sorted(rows) == [0, 1, 2, 3, 4]
    assert oracles.relevance.error_of_supports(relevance.numpy(), rows[:2]) == pytest.approx(0, abs=1e-12)


def test_supports_by_l2_greedy_rebuild_more_than_random_ones() -> None:
    relevance = matrix(300, 60, rank=20)
    errors = {
        name: oracles.relevance.error_of_supports(
            relevance.double().numpy(), select_supports(MEMBERS[name], relevance, 15, seed=0).tolist()
        )
        for name in ("random", "l2_greedy", "l2_greedy, float32")
    }
    assert errors["l2_greedy"] < 0.8 * errors["random"]
    assert errors["l2_greedy, float32"] < 1.02 * errors["l2_greedy"]


@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 99))
def test_most_diverse_is_its_definition(num_items: int, num_queries: int, seed: int) -> None:
    relevance = some_vectors(num_items, num_queries, seed).double()
    rows = select_supports(MostDiverseSupports(), relevance, min(4, num_items), seed=0)
    assert rows.tolist() == oracles.relevance.most_diverse(relevance.tolist(), min(4, num_items))


def test_popular_items_have_the_highest_mean() -> None:
    relevance = torch.tensor([[0.0, 1.0], [5.0, 5.0], [9.0, 0.0], [5.0, 5.0]])
    assert select_supports(PopularSupports(), relevance, 3, seed=0).tolist() == [1, 3, 2]


def test_clusters_give_one_item_each() -> None:
    centres = 100 * torch.eye(4)
    relevance = centres.repeat_interleave(10, dim=0) + 0.1 * some_vectors(40, 4)
    for method in ("k_means", "bisecting_k_means", "agglomerative", "spectral_coclustering"):
        rows = select_supports(ClusterSupports(method=method), relevance, 4, seed=0)
        assert sorted((rows // 10).tolist()) == [0, 1, 2, 3], method


def test_supports_that_cannot_be() -> None:
    relevance = matrix(10)
    for num in (0, 11):
        with pytest.raises(ValueError, match=rf"supports must number 1 to 10 \(the items\), got {num}"):
            select_supports(FirstSupports(), relevance, num, seed=0)
    for num_candidates in (4, 11):
        with pytest.raises(
            ValueError, match=rf"must number 5 \(the supports\) to 10 \(the items\), got {num_candidates}"
        ):
            select_supports(FirstSupports(), relevance, 5, seed=0, num_candidates=num_candidates)
    relevance[2, 3] = torch.nan
    with pytest.raises(
        ValueError, match="support selection needs every relevance, got a matrix with 1 that are missing"
    ):
        select_supports(FirstSupports(), relevance, 2, seed=0)
    with pytest.raises(ValueError, match=r"at most as many clusters as there are support queries \(3\), got 5"):
        select_supports(ClusterSupports(method="spectral_coclustering"), matrix(10, 3), 5, seed=0)


@pytest.mark.parametrize(("num_items", "num_supports"), [(1, 1), (2, 2), (3, 2), (9, 3), (9, 8), (10, 3), (11, 3)])
@pytest.mark.parametrize("is_equal", [False, True])
@pytest.mark.parametrize("method", ["k_means", "bisecting_k_means", "agglomerative", "spectral_nearest_neighbors"])
def test_clusters_of_few_items(method: Any, num_items: int, num_supports: int, is_equal: bool) -> None:
    if method.startswith("spectral") and (num_supports < 2 or num_supports == num_items):
        return
    relevance = torch.randn(num_items, 20, generator=torch.Generator().manual_seed(0)).double()
    relevance = relevance[:1].expand_as(relevance) if is_equal else relevance
    chosen = select_supports(ClusterSupports(method=method), relevance, num_supports, seed=0)
    assert len(set(chosen.tolist())) == num_supports


def test_clusters_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(
        UnsupportedError, match=r"needs the package scikit-learn, got none: pip install 'rails-ray\[rel"
    ):
        select_supports(ClusterSupports(), matrix(10), 2, seed=0)


def test_single_precision_chooses_as_double_precision_does() -> None:
    """Also if most of every score is alike, and little is left after the first choices."""
    factors = torch.logspace(0, -3, 40)
    relevance = 5 + (some_vectors(300, 40) * factors) @ some_vectors(40, 200, 1)
    assert l2_greedy(relevance.float(), 30).tolist() == l2_greedy(relevance.double(), 30).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_l2_greedy_takes_no_copy_while_other_items_are_left(dtype: torch.dtype) -> None:
    for seed in range(10):
        distinct = some_vectors(12, 30, seed).to(dtype)
        rows = l2_greedy(distinct.repeat(4, 1), 14).tolist()
        assert sorted(row % 12 for row in rows[:12]) == [*range(12)]
        assert len(set(rows)) == 14
