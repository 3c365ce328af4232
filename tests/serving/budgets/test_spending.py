"""A budget of calls of the heavy ranker, in this process: what it buys, and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rails_ray import on_ray
from rails_ray.reranking.rankers import candidates_of
from rails_ray.serving import local
from rails_ray.serving.budgets import KeptScores
from support.budgets import QUERIES, opened
from support.ranked import NUM_SUPPORTS, by_pairs

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


def best_of_all(texts: dict[str, str], query: str, k: int) -> list[float]:
    """The scores of the k best items, every one of them ranked."""
    scores = by_pairs({"text": query}, candidates_of(list(texts), list(texts.values())))
    return sorted(scores, reverse=True)[:k]


def test_the_versions_own_ranker_is_taken(root: Path) -> None:
    answer = local.open(str(root), allow_code=["support"]).search(["red hat"], k=3)
    assert len(answer.results[0].items) == 3


def test_without_a_budget_only_supports_are_scored(root: Path) -> None:
    version, ranker = opened(root)
    answer = version.search(QUERIES, k=4)
    assert ranker.num_pairs == NUM_SUPPORTS * len(QUERIES)
    for result in answer.results:
        assert result.budget is not None
        assert result.budget.model_dump() == {
            "calls_used": NUM_SUPPORTS,
            "is_reranked": False,
            "reason": "no budget was asked for",
        }


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("calls", [20, 60, 90])
def test_a_budget_is_spent_and_told(root: Path, texts: dict[str, str], calls: int, rounds: int) -> None:
    version, ranker = opened(root)
    answer = version.search(QUERIES, k=5, budget={"calls": calls, "rounds": rounds})
    # supports that are found cost nothing more, and no pair is scored twice
    most = min(calls, len(texts))
    for query, result in zip(QUERIES, answer.results, strict=True):
        pairs = [item for text, items in ranker.calls if text == query for item in items]
        assert len(pairs) == len(set(pairs))
        assert result.budget is not None
        assert result.budget.calls_used == len(pairs) <= most
        assert result.budget.is_reranked
        assert result.budget.reason is None
        assert result.scores == sorted(result.scores, reverse=True)
        assert result.scores == pytest.approx(
            by_pairs({"text": query}, candidates_of(result.items, [texts[item] for item in result.items]))
        )
        if calls >= len(texts):
            assert result.scores == pytest.approx(best_of_all(texts, query, 5))
            assert result.certificate.is_exact
        else:
            assert not result.certificate.is_exact
    assert answer.is_exact == (calls >= len(texts))


def test_rounds_over_shards_are_axn(root: Path) -> None:
    """v = argmin |E_A v - (s_A - u0_A)|^2 + lambda |v|^2, by the normal equations, and the best by u0 + E v next."""
    version, ranker = opened(root)
    version.search(["red hat"], k=5, budget={"calls": 6 + 30, "rounds": 3})
    supports, *rounds = [item_ids for _, item_ids in ranker.calls]
    assert [len(item_ids) for item_ids in rounds] == [10, 10, 10]
    encoder = version.engine.encoder
    scores = by_pairs({"text": "red hat"}, encoder.supports)
    query = encoder([{"text": "red hat"}], [np.array(scores)]).state.vectors()[0].double().numpy()
    vectors, texts = {}, {}
    for shard in version.shards:
        state = shard.items.state.components[:, 0].double().numpy()
        for row, item_id in enumerate(shard.items.item_ids):
            vectors[item_id], texts[item_id] = state[row], shard.items.texts[row].as_py()
    start = {item_id: float(query @ vector) for item_id, vector in vectors.items()}
    known, ridge, correction = list[str](), 0.0, np.zeros_like(query)
    for asked in rounds:
        moved = {item_id: float((query + correction) @ vector) for item_id, vector in vectors.items()}
        left = sorted((item_id for item_id in vectors if item_id not in known), key=lambda one: -moved[one])
        assert set(asked) == set([item_id for item_id in left if item_id not in supports][:10])
        known += [*asked, *(item_id for item_id in left[:36] if item_id in supports)]
        rows = np.stack([vectors[item_id] for item_id in known])
        said = by_pairs({"text": "red hat"}, candidates_of(known, [texts[item_id] for item_id in known]))
        ridge = ridge or 0.1 * float(np.square(rows).sum(axis=1).mean())
        residual = np.array(said) - np.array([start[item_id] for item_id in known])
        correction = np.linalg.solve(rows.T @ rows + ridge * np.eye(len(query)), rows.T @ residual)


def test_equal_queries_of_a_request_share_their_supports(root: Path) -> None:
    version, ranker = opened(root)
    answer = version.search(["red hat", "blue", "red hat"], k=3)
    assert ranker.num_pairs == 2 * NUM_SUPPORTS
    assert answer.results[0] == answer.results[2]


def test_a_budget_of_the_supports_alone_reranks_nothing(root: Path) -> None:
    version, _ = opened(root)
    plain = version.search(["red hat"], k=5)
    answer = version.search(["red hat"], k=5, budget={"calls": NUM_SUPPORTS})
    assert answer.results[0].items == plain.results[0].items
    assert answer.results[0].budget is not None
    assert not answer.results[0].budget.is_reranked
    assert answer.results[0].budget.reason == "the budget was spent on the supports"


def test_supports_of_a_repeated_query_are_scored_once_and_change_nothing(root: Path) -> None:
    version, ranker = opened(root)
    first = version.search(["red hat"], k=5, budget={"calls": 30})
    used = ranker.num_pairs
    again = version.search(["red hat"], k=5, budget={"calls": 30})
    assert ranker.num_pairs == 2 * used - NUM_SUPPORTS
    assert again.results[0].items == first.results[0].items
    assert again.results[0].budget is not None
    assert again.results[0].budget.calls_used == used - NUM_SUPPORTS


def test_kept_supports_have_a_bound() -> None:
    kept = KeptScores(2)
    for number, text in enumerate("abac"):
        kept.keep(text, np.array([float(number)]))
    assert len(kept) == 2
    assert kept.get("b") is None
    assert kept.get("a") == [2.0]


def test_excluded_items_are_not_ranked(root: Path) -> None:
    version, ranker = opened(root)
    best = version.search(["red hat"], k=5, budget={"calls": 40}).results[0].items
    ranker.calls.clear()
    query = {"text": "red hat", "exclude": best}
    answer = version.search([query], k=5, budget={"calls": 40, "rounds": 2})
    assert not set(answer.results[0].items) & set(best)
    reranked = {item for _, items in ranker.calls for item in items}
    assert not reranked & set(best)


def test_codes_of_long_vectors_estimate_the_rankers_scores(root: Path, texts: dict[str, str]) -> None:
    """Vectors of RBE have any length, which codes in their place keep."""
    on_ray.encode(str(root), "of-v1", version="codes", stored={"codes": (4, 16)})
    on_ray.publish(str(root), "codes")
    plain, coded = (
        local.open(str(root), name, ranker=by_pairs).search(["red hat"], k=len(texts)).results[0]
        for name in ("v1", "codes")
    )
    on_ray.publish(str(root), "v1")
    scores = dict(zip(coded.items, coded.scores, strict=True))
    pairs = np.array([[score, scores[item]] for item, score in zip(plain.items, plain.scores, strict=True)])
    assert np.corrcoef(pairs.T)[0, 1] > 0.9
    assert np.abs(pairs[:, 0] - pairs[:, 1]).mean() < 0.3 * pairs[:, 0].std() + 0.05


# Bad input


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"budget": {"calls": 5}},
            "budget.calls must be at least 6, which a query of version v1 spends",
        ),
        ({"budget": {"calls": 0}}, "budget.calls must be greater than or equal to 1, got 0"),
        ({"budget": {"calls": 9}}, "k must be at most the 3 items that the budget can rerank, got 5"),
        ({"budget": {"calls": 20, "rounds": 15}}, "budget.rounds must be at most the 14 calls left for them, got 15"),
        ({"budget": {"calls": 20, "deadline_ms": 0}}, "budget.deadline_ms must be greater than 0, got 0"),
        ({"budget": {"calls": 20}, "cutoff": {"score": 0.5}}, "cutoff must be top_k beside a budget, .* got score"),
        ({"budget": {"calls": 10**7}}, "queries times budget.calls must be at most 1000000 items"),
        ({"budget": 20}, "budget must be a JSON object, got 20"),
    ],
)
def test_budgets_that_do_not_fit(root: Path, asked: dict[str, Any], told: str) -> None:
    version, ranker = opened(root)
    with pytest.raises(ValueError, match=told):
        version.search(["red hat"], k=5, **asked)
    assert not ranker.calls


def test_queries_are_read_before_the_ranker_is_asked(root: Path) -> None:
    version, ranker = opened(root)
    with pytest.raises(ValueError, match=r"queries\[1\].text must hold a letter or a digit"):
        version.search(["red hat", "!!"])
    assert not ranker.calls
