"""What every retrieval method must hold, exact or not."""

import pytest
import torch

import oracles
from examples import random_states, small_mixture
from rails_ray import build
from rails_ray.retrieval import Retriever
from rails_ray.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.similarities.states import ItemState, QueryState
from rails_ray.top_k import Exclusions

NUM_QUERIES, NUM_ITEMS = 3, 40


def made(method: str, seed: int = 0, num_candidates: int = NUM_ITEMS) -> tuple[Retriever, QueryState, ItemState]:
    query, items = random_states(NUM_QUERIES, NUM_ITEMS, seed=seed)
    return build.retriever(method, small_mixture(), items, num_candidates), query, items


@pytest.fixture(params=build.METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("k", [1, 5, NUM_ITEMS])
def test_exactly_k_distinct_items_scores_descending(method: str, k: int) -> None:
    retriever, query, items = made(method)
    found = retriever.search(query, k)
    assert found.scores.shape == found.item_rows.shape == (NUM_QUERIES, k)
    assert (found.scores.diff(dim=1) <= 0).all()
    assert all(len(set(rows)) == k for rows in found.item_rows.tolist())
    true = small_mixture()(query, items).scores.detach().gather(1, found.item_rows)
    assert torch.allclose(found.scores, true, atol=1e-6)


def test_with_all_items_as_candidates_it_equals_the_oracle(method: str) -> None:
    retriever, query, items = made(method)
    scores = small_mixture()(query, items).scores.tolist()
    expected = [oracles.top_k(line, 7) for line in scores]
    assert retriever.search(query, 7).item_rows.tolist() == expected


def test_excluded_items_are_searched_around(method: str) -> None:
    """Not filtered afterwards: with the best items excluded there are still k results."""
    retriever, query, items = made(method)
    best = retriever.search(query, 10).item_rows
    excluded = [best[0].tolist(), best[1, :3].tolist(), []]
    found = retriever.search(query, 10, Exclusions.of(excluded))
    scores = small_mixture()(query, items).scores.tolist()
    expected = [oracles.top_k(line, 10, out) for line, out in zip(scores, excluded, strict=True)]
    assert found.item_rows.tolist() == expected


def test_no_query(method: str) -> None:
    retriever, _, _ = made(method)
    none, _ = random_states(0, 1)
    assert retriever.search(none, 3).item_rows.shape == (0, 3)


@pytest.mark.parametrize(("k", "message"), [(0, "at least 1, got 0"), (41, "at most the 40 indexed items, got 41")])
def test_k_outside_the_corpus(method: str, k: int, message: str) -> None:
    retriever, query, _ = made(method)
    with pytest.raises(ValueError, match=f"k must be {message}"):
        retriever.search(query, k)


def test_k_above_what_exclusion_leaves(method: str) -> None:
    retriever, query, _ = made(method)
    with pytest.raises(ValueError, match="k must be at most the 39 items left after exclusion, got 40"):
        retriever.search(query, 40, Exclusions.of([[], [5], []]))


def test_unknown_method() -> None:
    with pytest.raises(ValueError, match="method must be one of brute_force, average, got 'magic'"):
        made("magic")


def test_more_candidates_never_lower_the_scores_found() -> None:
    last = torch.full((NUM_QUERIES, 5), -torch.inf)
    for num_candidates in (5, 10, 20, 40):
        retriever, query, items = made("average", seed=3, num_candidates=num_candidates)
        rows = retriever.search(query, 5).item_rows
        found = small_mixture()(query, items).scores.gather(1, rows)  # rounded alike, however many are rescored at once
        assert (found >= last).all()
        last = found


def test_average_says_when_it_is_exact() -> None:
    query, items = random_states(4, 30, p_q=1, p_x=1)
    dot_product = DotProduct(DotProductConfig())
    average = build.retriever("average", dot_product, items, num_candidates=5)
    assert average.is_exact
    brute_force = build.retriever("brute_force", dot_product, items, 5)
    assert torch.equal(average.search(query, 5).item_rows, brute_force.search(query, 5).item_rows)
    retriever, query, _ = made("average", num_candidates=5)
    assert not retriever.is_exact


def test_average_in_blocks_of_queries_gives_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever, query, _ = made("average", num_candidates=10)
    whole = retriever.search(query, 5, Exclusions.of([[1], [], [2, 3]]))
    monkeypatch.setattr("rails_ray.retrieval.average.BLOCK_PAIRS", 1)
    parts = retriever.search(query, 5, Exclusions.of([[1], [], [2, 3]]))
    assert torch.equal(parts.item_rows, whole.item_rows)


def test_average_needs_a_candidate() -> None:
    with pytest.raises(ValueError, match="num_candidates must be at least 1, got 0"):
        made("average", num_candidates=0)
