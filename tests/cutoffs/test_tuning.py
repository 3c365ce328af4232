import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles.cutoffs
from rails_ray.cutoffs.distributions import UNIFORM, BetaDistribution
from rails_ray.cutoffs.policies import POLICIES, SHARES, MassCutoff, ScoreCutoff, TopKCutoff
from rails_ray.cutoffs.tuning import LabelledLists, f_beta, held_out, tune, values_of
from rails_ray.schema.requests import CUTOFF_KINDS


def drawn(num_queries: int, k: int, seed: int = 0, num_items: int = 1000) -> LabelledLists:
    """The higher an item scores, the likelier it is relevant; some lists are shorter than others."""
    generator = np.random.default_rng(seed)
    scores = np.sort(generator.uniform(-1, 1, (num_queries, k)), axis=1)[:, ::-1]
    is_relevant = generator.uniform(size=scores.shape) < np.clip(scores, 0, 1)
    scores = np.where(np.arange(k) < generator.integers(0, k + 1, num_queries)[:, None], scores, -np.inf)
    is_relevant &= scores > -np.inf
    beyond = generator.integers(1, 3, num_queries)
    return LabelledLists(scores, is_relevant, is_relevant.sum(axis=1) + beyond, np.full(num_queries, 0.2), num_items)


def by_loops(lists: LabelledLists, threshold: float, k: int, beta: float) -> tuple[list[list[bool]], list[float]]:
    """The items kept of each list, as whether they are relevant, and each list's F-beta."""
    kept = []
    for scores, relevant in zip(lists.scores, lists.is_relevant, strict=True):
        above = [bool(own) for score, own in zip(scores, relevant, strict=True) if score >= threshold and score > -9]
        kept.append(above[:k])
    pairs = zip(kept, lists.num_relevant.tolist(), strict=True)
    return kept, [oracles.cutoffs.f_beta(own, number, beta) for own, number in pairs]


@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 99), st.sampled_from([0.5, 1.0, 2.0]))
def test_what_is_tried_equals_the_loops(num_queries: int, k: int, seed: int, beta: float) -> None:
    lists = drawn(num_queries, k, seed)
    values = [-0.5, 0.2, 0.7]
    best, tried = tune("score", [(value, ScoreCutoff(value)) for value in values], lists, beta)
    assert [one.value for one in tried] == values
    means = []
    for one in tried:
        kept, f = by_loops(lists, one.value, k, beta)
        means.append(sum(f) / len(f))
        assert one.f_beta == pytest.approx(means[-1])
        some = [sum(own) / len(own) for own in kept if own]
        assert one.precision == pytest.approx(sum(some) / len(some) if some else 0.0)
        recall = [sum(own) / number for own, number in zip(kept, lists.num_relevant.tolist(), strict=True)]
        assert one.recall == pytest.approx(np.mean(recall))
        lengths = [len(own) for own in kept]
        assert one.mean_kept == pytest.approx(np.mean(lengths))
        assert one.num_kept == pytest.approx(tuple(np.quantile(lengths, [0.1, 0.5, 0.9])))
        assert one.empty_fraction == pytest.approx(np.mean([not own for own in kept]))
    assert best.f_beta == max(one.f_beta for one in tried)
    assert best.value == values[int(np.argmax([one.f_beta for one in tried]))]


def test_f_beta_weighs_recall() -> None:
    assert f_beta(np.array([1]), np.array([1]), np.array([4]), 1.0) == pytest.approx([0.4])
    few, many = (TopKCutoff(1), TopKCutoff(6))
    lists = drawn(200, 6)
    chosen = {beta: tune("top_k", [(1.0, few), (6.0, many)], lists, beta)[0].value for beta in (0.2, 5.0)}
    assert chosen == {0.2: 1, 5.0: 6}


def test_a_list_that_might_go_on_is_counted() -> None:
    lists = drawn(50, 5)
    [one] = tune("score", [(-2.0, ScoreCutoff(-2.0))], lists, 1.0)[1]
    assert one.truncated_fraction == 1.0
    whole = LabelledLists(lists.scores, lists.is_relevant, lists.num_relevant, lists.temperature, num_items=5)
    assert tune("score", [(-2.0, ScoreCutoff(-2.0))], whole, 1.0)[0].truncated_fraction == 0.0


def test_each_half_is_measured_with_what_is_best_on_the_other() -> None:
    """Values that are each best by chance alone come to what chance gives."""
    f = np.random.default_rng(0).uniform(size=(50, 400))
    assert f.mean(axis=1).max() > 0.52
    assert held_out(f) == pytest.approx(0.5, abs=0.04)
    order = np.random.default_rng(0).permutation(4)
    small = np.array([[1.0, 1, 0, 0], [0.0, 0, 1, 1]])
    halves = order[:2], order[2:]
    best = [int(np.argmax([small[value, half].mean() for value in (0, 1)])) for half in halves]
    expected = [small[best[1], query] for query in halves[0]] + [small[best[0], query] for query in halves[1]]
    assert held_out(small) == pytest.approx(np.mean(expected))
    assert held_out(np.array([[0.3], [0.8]])) == 0.8, "one query cannot be halved"


@pytest.mark.parametrize("kind", POLICIES)
def test_values_rise_and_can_be_asked_for(kind: str) -> None:
    values = values_of(kind, drawn(30, 20))
    assert values == sorted(set(values))
    assert len(values) >= 10
    if kind in ("mass", "nucleus", "coverage", "probability"):
        assert 0 < values[0] < values[-1] < 1
    if kind == "top_k":
        assert values[-1] <= 20
    if kind == "mass":
        assert set(SHARES) < set(values)


def test_scores_to_try_spread_over_what_was_found() -> None:
    lists = drawn(200, 20)
    lengths = [(lists.scores >= value).sum() / 200 for value in values_of("score", lists)]
    assert lengths[-1] < 0.3
    assert lengths[0] > 8


def test_no_list_has_an_item() -> None:
    nothing = LabelledLists(
        np.full((2, 3), -np.inf), np.zeros((2, 3), dtype=bool), np.ones(2, dtype=int), np.ones(2), 3
    )
    assert values_of("score", nothing) == []
    best, _ = tune("mass", [(0.5, MassCutoff(0.5, BetaDistribution(UNIFORM)))], nothing, 1.0)
    assert (best.f_beta, best.precision, best.empty_fraction) == (0.0, 0.0, 1.0)


def test_what_cannot_be_tuned() -> None:
    with pytest.raises(ValueError, match="tuning needs at least 1 query with a relevant item, got none"):
        tune("top_k", [(1.0, TopKCutoff(1))], drawn(0, 3), 1.0)
    with pytest.raises(ValueError, match="beta must be above 0, got 0"):
        tune("top_k", [(1.0, TopKCutoff(1))], drawn(3, 3), 0.0)
    with pytest.raises(ValueError, match="must be one of top_k, score, mass, nucleus, probability, coverage, got 'x'"):
        values_of("x", drawn(3, 3))


def test_every_kind_of_cut_off_that_a_request_may_name_can_be_tried() -> None:
    assert set(POLICIES) == set(CUTOFF_KINDS)
