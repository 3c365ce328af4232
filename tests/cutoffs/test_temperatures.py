from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.cutoffs
from rails_ray.cutoffs.calibration import Positives
from rails_ray.cutoffs.distributions import UNIFORM, Background, BetaDistribution, ExpDistribution, ScoreDistribution
from rails_ray.cutoffs.measuring import measure_shares
from rails_ray.cutoffs.temperatures import (
    AS_TRAINED,
    FACTORS,
    Factor,
    Factors,
    Tempered,
    fit,
    held_out_background,
    log_likelihoods,
    means,
    tempered,
)
from rails_ray.modules.losses.exp_nce import exp_logit
from support.tried import tried

BETA = BetaDistribution(UNIFORM)
KINDS = [pytest.param(BetaDistribution, "beta", id="beta"), pytest.param(ExpDistribution, "exp", id="exp")]


def drawn(
    num_queries: int, factor: float, background: Background, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query, score and tau_q of 1 to 4 relevant items each, whose scores have `factor` times tau_q."""
    generator = np.random.default_rng(seed)
    tau_q = generator.uniform(0.01, 0.1, num_queries)
    query = np.repeat(np.arange(num_queries), generator.integers(1, 5, num_queries))
    z = generator.beta(background.a + 1 / (factor * tau_q[query]), background.b)
    return query, 2 * z - 1, tau_q


# 1. What the equations say


@pytest.mark.parametrize("background", [UNIFORM, Background(3.0, 8.0), Background(1.0, 4.5)])
@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_likelihoods_equal_the_oracle(
    kind: Callable[[Background], ScoreDistribution], name: str, background: Background
) -> None:
    queries = [([0.3, -0.2, 0.9], 0.1), ([0.75], 0.5), ([0.1, 0.2], 0.3)]
    query = np.array([0, 0, 0, 1, 3, 3])  # query 2 has no relevant item
    found = log_likelihoods(
        query, np.concatenate([scores for scores, _ in queries]), np.array([0.1, 0.5, 0.7, 0.3]), kind(background)
    )
    assert found.shape == (3, len(FACTORS))
    for number in (4, 8, 13):
        factor = FACTORS[number]
        own = [(scores, factor * tau) for scores, tau in queries]
        expected = oracles.cutoffs.mean_log_density(own, background.a, background.b, name)
        assert found[:, number].mean() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("background", [UNIFORM, Background(31.5, 31.5)])
@pytest.mark.parametrize("kind", [BetaDistribution, ExpDistribution])
def test_a_density_is_the_slope_of_its_mass(
    kind: Callable[[Background], ScoreDistribution], background: Background
) -> None:
    distribution, scores, tau_q = kind(background), np.array([-0.5, 0.1, 0.8, 0.97]), np.array([0.5, 0.1, 0.05, 0.02])
    above, below = (distribution.mass_below(scores + step, tau_q) for step in (1e-6, -1e-6))
    assert np.exp(distribution.log_density(scores, tau_q)) == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-8)
    assert np.isfinite(distribution.log_density(np.array([-1.0, 1.0, 1.0 + 1e-7]), 0.05)).all()


def test_a_fit_is_the_best_of_a_fine_grid() -> None:
    """The closed form over a uniform background, with loops: log density = log(alpha / 2) + (alpha - 1) log z."""
    query, score, tau_q = drawn(60, 2.3, UNIFORM)

    def likelihood(factor: float) -> float:
        each = []
        for number in range(60):
            alpha = 1 + 1 / (factor * tau_q[number])
            own = [np.log(alpha / 2) + (alpha - 1) * np.log((1 + s) / 2) for s in score[query == number]]
            each.append(sum(own) / len(own))
        return sum(each) / len(each)

    grid = np.exp(np.linspace(np.log(1.5), np.log(3.5), 1500))
    best = grid[np.argmax([likelihood(factor) for factor in grid.tolist()])]
    found = fit(log_likelihoods(query, score, tau_q, BETA))
    assert found.value == pytest.approx(best, rel=1e-3)
    assert found.num_queries == 60
    assert fit(log_likelihoods(query, score, tau_q, BETA)) == found


def test_a_softmax_is_fitted_to_a_thousandth() -> None:
    """The steps of FACTORS are half octaves, and the logits of a softmax bend more than a density's."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 6, (300, 50))
    queries = [(line.tolist(), [int(generator.choice(50, p=softmax(line / 1.7)))]) for line in logits]
    likelihood = np.array(
        [[oracles.cutoffs.mean_log_probability([own], factor) for factor in FACTORS] for own in queries]
    )
    grid = np.exp(np.linspace(np.log(1.2), np.log(2.4), 700))
    best = grid[np.argmax([oracles.cutoffs.mean_log_probability(queries, factor) for factor in grid.tolist()])]
    assert fit(likelihood).value == pytest.approx(best, rel=2e-3)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


# 2. What a fit is for


@pytest.mark.parametrize("factor", [0.4, 1.0, 9.0])
def test_the_factor_behind_the_scores_is_found_and_shares_then_mean_what_they_say(factor: float) -> None:
    query, score, tau_q = drawn(3000, factor, UNIFORM)
    found = fit(log_likelihoods(query, score, tau_q, BETA))
    assert found.low < factor < found.high
    assert found.high / found.low < 1.1
    new = drawn(3000, factor, UNIFORM, seed=1)
    fitted, trained = (
        measure_shares(Positives.of(*new, distribution))  # type: ignore[arg-type]
        for distribution in (Tempered(BETA, found.value), BETA)
    )
    for one in fitted:
        assert one.low - 0.01 <= one.nominal <= one.high + 0.01
    assert factor == 1 or not all(one.is_as_promised for one in trained)


def test_intervals_hold_the_factor_as_often_as_they_say() -> None:
    """Also where queries' items are alike, as draws by query see them."""
    held = []
    for seed in range(200):
        query, score, tau_q = drawn(100, 2.0, UNIFORM, seed)
        score = score[np.searchsorted(query, np.arange(100))][query]  # all items of a query score the same
        found = fit(log_likelihoods(query, score, tau_q, BETA))
        held.append(found.low <= 2.0 <= found.high)
    assert 0.9 <= np.mean(held) <= 0.99


@pytest.mark.parametrize("kind", [BetaDistribution, ExpDistribution])
def test_a_background_of_held_out_items_is_likelier_than_any_other(
    kind: Callable[[Background], ScoreDistribution],
) -> None:
    truth = Background(2.0, 7.0)
    query, score, tau_q = drawn(400, 1.5, truth)
    found = held_out_background(query, score, tau_q, kind)

    def best(background: Background) -> float:
        return float(log_likelihoods(query, score, tau_q, kind(background)).mean(axis=0).max())

    for other in (truth, UNIFORM, Background(found.a * 1.2, found.b), Background(found.a, found.b * 1.2)):
        assert best(found) >= best(other) - 1e-3
    if kind is BetaDistribution:
        assert fit(log_likelihoods(query, score, tau_q, kind(found))).value == pytest.approx(1.5, rel=0.3)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-1, 1)), min_size=1, max_size=20))
@tried(30)
def test_means_by_query(pairs: list[tuple[int, float]]) -> None:
    query, values = np.array([number for number, _ in pairs]), np.array([value for _, value in pairs])
    expected = [np.mean(values[query == number]) for number in sorted(set(query.tolist()))]
    assert means(query, values) == pytest.approx(np.array(expected), abs=1e-12)


def test_tempering_scales_tau_q() -> None:
    tau_q, scores = np.array([0.1, 0.02]), np.array([0.5, 0.9])
    own = Tempered(BETA, 3.0)
    assert own.quantile(0.2, tau_q) == pytest.approx(BETA.quantile(0.2, 3 * tau_q))
    assert own.mass_below(scores, tau_q) == pytest.approx(BETA.mass_below(scores, 3 * tau_q))
    logits = torch.tensor([[0.5, -0.3]]), torch.tensor([0.1])
    assert torch.allclose(tempered(exp_logit, 3.0)(*logits), exp_logit(logits[0], 3 * logits[1]))


def test_what_is_not_fitted_stays_as_trained() -> None:
    assert AS_TRAINED.tempered_logit(exp_logit) is exp_logit
    assert AS_TRAINED.tempered_distribution(BETA, "uniform") is BETA
    assert AS_TRAINED.background == "uniform"
    some = Factors({"sphere": Factor(2.0, 1.9, 2.1, 9)})
    assert some.tempered_distribution(BETA, "uniform") is BETA
    assert some.tempered_distribution(BETA, "sphere") == Tempered(BETA, 2.0)


# 3. What cannot be fitted


def test_without_queries_there_is_nothing_to_fit() -> None:
    with pytest.raises(ValueError, match="needs at least 1 held-out query with a relevant item, got none"):
        fit(np.empty((0, len(FACTORS))))


def test_scores_that_no_factor_fits() -> None:
    """Relevant items that score as low as any: the flatter the density, the better."""
    query, tau_q = np.arange(50), np.full(50, 0.02)
    with pytest.raises(ValueError, match=r"must be above 0\.0625 and below 256, got 256 or beyond: train the model"):
        fit(log_likelihoods(query, np.full(50, -0.9), tau_q, BETA))


def test_scores_that_are_too_few_for_a_background() -> None:
    with pytest.raises(ValueError, match="needs at least 3 distinct scores, got 1"):
        held_out_background(np.arange(5), np.full(5, 0.5), np.full(5, 0.1), BetaDistribution)


@pytest.mark.parametrize("kind", [BetaDistribution, ExpDistribution])
def test_scores_at_the_ends_can_be_fitted(kind: Callable[[Background], ScoreDistribution]) -> None:
    """Duplicates of a query score 1, and a MoL's float32 above it."""
    query, score, tau_q = drawn(100, 1.0, Background(2.0, 5.0))
    score = np.where(query < 10, 1.0 + 1e-7, score).astype(np.float32)
    background = held_out_background(query, score, tau_q, kind)
    assert fit(log_likelihoods(query, score, tau_q, kind(background))).value > 0
