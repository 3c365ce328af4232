"""What every retrieval method must hold, exact or not."""

from dataclasses import replace

import pytest
import torch

import oracles
from rails_ray.build import search as search_building
from rails_ray.retrieval import Retriever
from rails_ray.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.similarities.states import AnyQuery, ItemState, QueryState, take
from rails_ray.top_k import Exclusions
from support.examples import random_states, small_mixture
from support.of_codes import look_ups, of_codes, random_codes

NUM_QUERIES, NUM_ITEMS = 3, 40
OF_CODES = ("look_up", "inverted")


def made(
    method: str, seed: int = 0, num_candidates: int = NUM_ITEMS, num_per_embedding: int = NUM_ITEMS
) -> tuple[Retriever, QueryState, ItemState]:
    query, items = random_states(NUM_QUERIES, NUM_ITEMS, seed=seed)
    return search_building.retriever(method, small_mixture(), items, num_candidates, num_per_embedding), query, items


def case(
    method: str, seed: int = 0, num_candidates: int = NUM_ITEMS, num_per_embedding: int = NUM_ITEMS
) -> tuple[Retriever, AnyQuery, list[list[float]]]:
    """A retriever of components or of codes, queries, and their scores of all items."""
    if method not in OF_CODES:
        retriever, query, items = made(method, seed, num_candidates, num_per_embedding)
        return retriever, query, small_mixture()(query, items).scores.tolist()
    query, items = random_codes(NUM_QUERIES, NUM_ITEMS, seed=seed)
    return of_codes(method, items, num_candidates), query, look_ups(query, items)


@pytest.fixture(params=search_building.METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=(*search_building.METHODS, *OF_CODES))
def any_method(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("k", [1, 5, NUM_ITEMS])
def test_exactly_k_distinct_items_scores_descending(any_method: str, k: int) -> None:
    retriever, query, scores = case(any_method)
    found = retriever.search(query, k).top_k
    assert isinstance(retriever, Retriever)
    assert found.scores.shape == found.item_rows.shape == (NUM_QUERIES, k)
    assert (found.scores.diff(dim=1) <= 0).all()
    assert all(len(set(rows)) == k for rows in found.item_rows.tolist())
    assert torch.allclose(found.scores, torch.tensor(scores).gather(1, found.item_rows), atol=1e-6)


def test_with_all_items_as_candidates_it_equals_the_oracle(any_method: str) -> None:
    retriever, query, scores = case(any_method)
    expected = [oracles.top_k(line, 7) for line in scores]
    found = retriever.search(query, 7)
    assert found.top_k.item_rows.tolist() == expected
    assert found.certificate.gap(found.top_k.scores[:, -1]).tolist() == [0] * NUM_QUERIES  # nothing was left out


def test_excluded_items_are_searched_around(any_method: str) -> None:
    """Not filtered afterwards: with the best items excluded there are still k results."""
    retriever, query, scores = case(any_method)
    best = retriever.search(query, 10).top_k.item_rows
    excluded = [best[0].tolist(), best[1, :3].tolist(), []]
    found = retriever.search(query, 10, Exclusions.of(excluded)).top_k
    expected = [oracles.top_k(line, 10, out) for line, out in zip(scores, excluded, strict=True)]
    assert found.item_rows.tolist() == expected


def test_no_query(any_method: str) -> None:
    retriever, query, _ = case(any_method)
    assert retriever.search(take(query, slice(0, 0)), 3).top_k.item_rows.shape == (0, 3)


@pytest.mark.parametrize(("k", "message"), [(0, "at least 1, got 0"), (41, "at most the 40 indexed items, got 41")])
def test_k_outside_the_corpus(any_method: str, k: int, message: str) -> None:
    retriever, query, _ = case(any_method)
    with pytest.raises(ValueError, match=f"k must be {message}"):
        retriever.search(query, k)


def test_k_above_what_exclusion_leaves(any_method: str) -> None:
    retriever, query, _ = case(any_method)
    with pytest.raises(ValueError, match="k must be at most the 39 items left after exclusion, got 40"):
        retriever.search(query, 40, Exclusions.of([[], [5], []]))


def test_unknown_method() -> None:
    with pytest.raises(ValueError, match=r"method must be one of brute_force, two_pass, .*, got 'magic'"):
        made("magic")


@pytest.mark.parametrize(("num_candidates", "num_per_embedding"), [(3, 1), (7, 2), (20, 6)])
@pytest.mark.parametrize("seed", range(5))
def test_narrow_lists_give_k_items_and_a_certificate_that_holds(
    any_method: str, seed: int, num_candidates: int, num_per_embedding: int
) -> None:
    """What is said of the gap is true, with items excluded too, and what is called exact is brute force's answer."""
    k = 3
    retriever, query, scores = case(any_method, seed, num_candidates, num_per_embedding)
    excluded = [[0, 5, 7], [], [31]]
    found = retriever.search(query, k, Exclusions.of(excluded))
    assert all(len(set(rows)) == k for rows in found.top_k.item_rows.tolist())
    gaps = found.certificate.gap(found.top_k.scores[:, -1])
    for line, (all_scores, out) in enumerate(zip(scores, excluded, strict=True)):
        expected = oracles.top_k(all_scores, k, out)
        rows = found.top_k.item_rows[line].tolist()
        assert not set(rows) & set(out)
        missed = [all_scores[row] for row in expected if row not in rows]
        if retriever.is_exact:
            assert rows == expected
        if gaps is not None:
            assert max(missed, default=-2) - found.top_k.scores[line, -1].item() <= gaps[line].item() + 1e-6
            assert gaps[line] > 0 or rows == expected
    if retriever.is_exact:
        assert gaps.tolist() == [0] * NUM_QUERIES


def test_methods_that_cannot_know_what_they_missed_say_why() -> None:
    retriever, query, _ = made("average", num_candidates=5)
    found = retriever.search(query, 5)
    assert found.certificate.bound is None
    assert "any cosine" in found.certificate.reason


def test_everything_excluded(any_method: str) -> None:
    retriever, query, _ = case(any_method)
    with pytest.raises(ValueError, match="k must be at most the 0 items left after exclusion, got 1"):
        retriever.search(query, 1, Exclusions.of([[], list(range(NUM_ITEMS)), []]))


def test_a_query_that_is_not_finite(method: str) -> None:
    retriever, query, _ = made(method)
    query.components[1, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="query components must be finite, got NaN or infinity in query 1"):
        retriever.search(query, 3)
    query.components[1] = 0
    query.gate[2, 0] = torch.inf
    with pytest.raises(ValueError, match="query gate must be finite, got NaN or infinity in query 2"):
        retriever.search(query, 3)


def test_components_of_another_shape(method: str) -> None:
    retriever, _, _ = made(method)
    query, items = random_states(NUM_QUERIES, NUM_ITEMS, width=5)
    with pytest.raises(ValueError, match="query components must have the width of the index, 4, got 5"):
        retriever.search(query, 3)
    query, items = random_states(NUM_QUERIES, NUM_ITEMS, p_x=2)
    with pytest.raises(ValueError, match="items must have the 3 components that the similarity compares, got 2"):
        search_building.retriever(method, small_mixture(), items, 9, 9)
    query, items = random_states(NUM_QUERIES, NUM_ITEMS, p_q=1)
    retriever, _, _ = made(method)
    with pytest.raises(ValueError, match="query must have 2 components, got 1"):
        retriever.search(query, 3)


def test_items_without_the_columns_that_a_method_needs(method: str) -> None:
    query, items = random_states(NUM_QUERIES, NUM_ITEMS)
    with pytest.raises(ValueError, match="must have the column 'gate' of its items, got an index without it"):
        search_building.retriever(method, small_mixture(), replace(items, gate=None), 9, 9)
    if method in ("average", "combined"):
        with pytest.raises(ValueError, match="need the column 'average' of the index, got one without it"):
            search_building.retriever(method, small_mixture(), replace(items, average=None), 9, 9)
    else:
        search_building.retriever(method, small_mixture(), replace(items, average=None), 9, 9).search(query, 3)


@pytest.mark.parametrize(
    ("method", "k", "message"),
    [
        ("average", 6, "num_candidates must be at least 6, the k of the search, got 5"),
        ("per_embedding", 13, "num_per_embedding must be at least 3 for k 13, with 6 pairs of components"),
        ("combined", 18, "num_per_embedding must be at least 3 for k 18, with 6 pairs of components and 5 items by"),
    ],
)
def test_widths_below_k(method: str, k: int, message: str) -> None:
    retriever, query, _ = made(method, num_candidates=5, num_per_embedding=2)
    with pytest.raises(ValueError, match=message):
        retriever.search(query, k)
    assert retriever.search(query, k - 1).top_k.k == k - 1


def test_more_candidates_never_lower_the_scores_found() -> None:
    last = torch.full((NUM_QUERIES, 5), -torch.inf)
    for num_candidates in (5, 10, 20, 40):
        retriever, query, items = made("average", seed=3, num_candidates=num_candidates)
        rows = retriever.search(query, 5).top_k.item_rows
        found = small_mixture()(query, items).scores.gather(1, rows)  # rounded alike, however many are rescored at once
        assert (found >= last).all()
        last = found


@pytest.mark.parametrize("method", ["per_embedding", "average", "combined"])
def test_with_a_single_pair_of_components_the_first_stage_is_exact(method: str) -> None:
    query, items = random_states(4, 30, p_q=1, p_x=1)
    dot_product = DotProduct(DotProductConfig())
    retriever = search_building.retriever(method, dot_product, items, 5, 5)
    assert retriever.is_exact
    brute_force = search_building.retriever("brute_force", dot_product, items, 5, 5).search(query, 5)
    found = retriever.search(query, 5)
    assert torch.equal(found.top_k.item_rows, brute_force.top_k.item_rows)
    assert found.certificate.gap(found.top_k.scores[:, -1]).tolist() == [0] * 4
    assert not made(method)[0].is_exact


def test_rescoring_in_blocks_of_queries_gives_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever, query, _ = made("combined", num_candidates=10, num_per_embedding=2)
    whole = retriever.search(query, 5, Exclusions.of([[1], [], [2, 3]])).top_k
    monkeypatch.setattr("rails_ray.retrieval.rescore.BLOCK_PAIRS", 1)
    parts = retriever.search(query, 5, Exclusions.of([[1], [], [2, 3]])).top_k
    assert torch.equal(parts.item_rows, whole.item_rows)


@pytest.mark.parametrize("method", ["two_pass", "per_embedding", "average", "combined"])
def test_a_first_stage_takes_at_least_one_item(method: str) -> None:
    with pytest.raises(ValueError, match=r"must (be|take) at least 1"):
        made(method, num_candidates=0, num_per_embedding=0)
