"""Weights that are fitted to a query's own items."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles.ranking
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, map_tensors, take
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods.gated import NEAR, RIDGE, among, fitted, pair_cosines, weighted
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec
from support.examples import random_states, sharp_mixture, small_mixture
from support.tried import tried

INFINITY = float("inf")


def cosines_of(query: QueryState, items: ItemState) -> list[list[list[float]]]:
    """[B, X, P], p = p_q * P_X + p_x."""
    return torch.einsum("bqd,xpd->bxqp", query.components, items.components).flatten(2).tolist()


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(1, 30), st.integers(1, 7), st.integers(0, 100))
def test_weights_equal_the_loops(num_queries: int, num_items: int, num_pairs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    cosines = torch.rand(num_queries, num_items, num_pairs, generator=generator) * 2 - 1
    scores = torch.rand(num_queries, num_items, generator=generator)
    expected = [
        oracles.ranking.slopes(lines, own, RIDGE, NEAR)
        for lines, own in zip(cosines.tolist(), scores.tolist(), strict=True)
    ]
    found = fitted(cosines, scores)
    assert found.shape == (num_queries, num_pairs)
    if num_items > 1:
        assert torch.allclose(found, torch.tensor(expected).view(found.shape), atol=1e-4)
    else:
        assert torch.allclose(found, torch.full_like(found, 1 / num_pairs))


def test_without_items_the_weights_are_those_of_the_average() -> None:
    assert torch.equal(fitted(torch.empty(2, 0, 4), torch.empty(2, 0)), torch.full((2, 4), 0.25))
    nothing = torch.full((1, 3), -INFINITY)
    assert torch.equal(fitted(torch.rand(1, 3, 4), nothing), torch.full((1, 4), 0.25))


def test_cosines_that_differ_by_rounding_change_no_weight() -> None:
    """As those of items with one code, whose last bits depend on how many queries are asked together."""
    torch.manual_seed(0)
    cosines, scores = torch.rand(2, 3, 4), torch.rand(2, 3)
    cosines[:, :, 2] = cosines[:, :1, 2]
    noise = torch.tensor([[[0, 3e-8, -3e-8]], [[6e-8, 0, 3e-8]]]).transpose(1, 2)
    noisy = cosines + noise * torch.tensor([0.0, 0, 1, 0])
    assert not torch.equal(noisy, cosines)
    assert torch.allclose(fitted(noisy, scores), fitted(cosines, scores), atol=1e-6)
    assert fitted(noisy, scores)[:, 2].tolist() == [0.25] * 2
    rest = [place for place in range(4) if place != 2]
    assert not torch.allclose(fitted(noisy, scores)[:, rest], torch.tensor(0.25), atol=1e-3)


def test_scores_that_are_linear_in_the_cosines_are_found_but_for_the_ridge() -> None:
    torch.manual_seed(0)
    cosines, weights = torch.rand(2, 500, 3), torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    found = fitted(cosines, (cosines @ weights[:, :, None])[:, :, 0])
    assert ((found - weights).abs() < 0.11 * (weights - 1 / 3).abs() + 0.02).all()


def test_places_without_an_item_and_scores_of_nan_change_no_weight() -> None:
    torch.manual_seed(0)
    cosines, scores = torch.rand(2, 20, 3), torch.rand(2, 20)
    more = torch.cat([cosines, torch.full((2, 2, 3), torch.nan)], dim=1)
    with_none = torch.cat([scores, torch.tensor([[-INFINITY, torch.nan]] * 2)], dim=1)
    assert torch.allclose(fitted(more, with_none), fitted(cosines, scores), atol=1e-6)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 9))
@settings(deadline=None)
def test_one_inner_product_is_the_weighted_sum_of_all_cosines(p_q: int, p_x: int, seed: int) -> None:
    query, items = random_states(3, 8, p_q=p_q, p_x=p_x, seed=seed)
    weights = torch.rand(3, p_q * p_x)
    rows = torch.arange(8).expand(3, 8)
    cosines = pair_cosines(query, take(items, rows))
    assert torch.allclose(cosines, torch.tensor(cosines_of(query, items)), atol=1e-6)
    products = weighted(query, weights) @ items.together().T
    assert torch.allclose(products, (cosines @ weights[:, :, None])[:, :, 0], atol=1e-5)


@tried(50)
@given(
    st.integers(2, 60),
    st.integers(1, 70),
    st.integers(2, 5),
    st.integers(0, 200),
    st.lists(st.integers(0, 59), max_size=9),
)
def test_the_items_scored_are_those_of_the_loops(
    num_items: int, num: int, num_rounds: int, seed: int, excluded: list[int]
) -> None:
    query, items = random_states(2, num_items, seed=seed)
    excluded = [row for row in excluded if row < num_items]
    mixture = sharp_mixture()
    scores = mixture.scores(query, items)
    own = ByComponents(mixture, items).retriever("gated", SearchParams(num_candidates=num, num_rounds=num_rounds))
    found = own.search(query, SearchSpec(num_items, torch.full((2,), -INFINITY), mask=Exclusions.of([excluded] * 2)))
    for line, (cosines, of_query) in enumerate(zip(cosines_of(query, items), scores.tolist(), strict=True)):
        expected = oracles.ranking.scored_in_rounds(cosines, of_query, num, num_rounds, RIDGE, NEAR, excluded)
        rows = found.item_rows[line, : found.num_found()[line]].tolist()
        assert rows == [row for row in oracles.ranking.top_k(of_query, num_items) if row in expected]
        assert found.num_scored[line] == len(expected)
        is_all = len(expected) == num_items - len(set(excluded))
        assert found.bound[line] == (-INFINITY if is_all else INFINITY)
        assert (found.reasons[line] is None) == is_all


def test_where_gates_are_a_querys_own_the_fit_finds_what_the_average_misses() -> None:
    query, items = random_states(20, 2000, width=8, seed=1)
    mixture = small_mixture()
    for parameter in mixture.logit_gate.parameters():
        parameter.data.zero_()
    own = ByComponents(mixture, replace(items, gate=torch.ones_like(items.gate)))
    query = replace(query, gate=3 * query.gate)
    best = own.search(query, SearchSpec(10)).item_rows
    share = {}
    for method in ("average", "gated"):
        rows = own.search(query, SearchSpec(10), method, SearchParams(num_candidates=60)).item_rows
        share[method] = float((best[:, :, None] == rows[:, None]).any(dim=2).float().mean())
    assert share["average"] < 0.7
    assert share["gated"] > 0.97


def test_it_says_why_nothing_is_known() -> None:
    query, items = random_states(2, 40)
    found = ByComponents(small_mixture(), items).search(query, SearchSpec(5), "gated", SearchParams(num_candidates=10))
    assert found.reasons == 2 * [
        "candidates by a linear fit to scores: an item that it leaves out may lie above the fit"
    ]
    assert found.bound.tolist() == [INFINITY] * 2
    assert found.num_scored.tolist() == [10, 10]


def test_items_without_the_average_begin_with_all_components_weighted_alike() -> None:
    query, items = random_states(3, 50, seed=4)
    without = ItemState(items.components, items.gate, None)
    found = [
        ByComponents(small_mixture(), own).search(query, SearchSpec(5), "gated", SearchParams(num_candidates=12))
        for own in (items, without)
    ]
    assert torch.equal(found[0].item_rows, found[1].item_rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_stored_components_are_neither_copied_nor_widened_at_once(dtype: torch.dtype) -> None:
    query, items = random_states(3, 50)
    items = map_tensors(lambda tensor: tensor.to(dtype), items)
    own = ByComponents(small_mixture(), items)
    assert own.first_stage.together.vectors.data_ptr() == items.components.data_ptr()
    found = own.search(query, SearchSpec(50), "gated", SearchParams(num_candidates=50))
    assert torch.equal(found.item_rows, own.search(query, SearchSpec(50)).item_rows)


def test_a_dot_product_has_no_gates_to_stand_for() -> None:
    _, items = random_states(1, 9, p_q=1, p_x=1)
    own = ByComponents(DotProduct(DotProductConfig()), items)
    assert "gated" not in own.methods
    with pytest.raises(ValueError, match=r"method must be one of .*, combined, ann for items .*, got 'gated'"):
        own.retriever("gated")


def test_rows_that_are_among_others() -> None:
    rows, others = torch.tensor([[0, 3, 5], [0, 1, 2]]), torch.tensor([[5, 0], [7, 1]])
    is_there = torch.tensor([[True, False], [True, True]])
    assert among(rows, others, is_there).tolist() == [[False, False, True], [False, True, False]]
