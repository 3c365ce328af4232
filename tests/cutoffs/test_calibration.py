import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from rails_ray.cutoffs.calibration import (
    CANDIDATE_MASSES,
    Calibration,
    Positives,
    best_mass,
    conformal_share,
    mean_f1,
    num_needed,
)
from rails_ray.cutoffs.distributions import UNIFORM, Background, BetaDistribution, sphere

BETA = BetaDistribution(UNIFORM)


def drawn(num_queries: int, seed: int, is_alike: bool = False) -> Positives:
    """Queries with 1 to 5 positives; those of a large tau_q score lower than the model believes."""
    generator = np.random.default_rng(seed)
    temperature = np.full(num_queries, 0.1) if is_alike else generator.uniform(0.02, 0.3, num_queries)
    query = np.repeat(np.arange(num_queries), generator.integers(1, 6, num_queries))
    true_tau = temperature[query] * (1 + 5 * temperature[query])
    score = 2 * generator.beta(1 + 1 / true_tau, 1) - 1
    return Positives.of(query, score, temperature, BETA)


@given(st.integers(1, 30), st.floats(0.05, 0.9), st.data())
def test_the_share_equals_its_definition(num_queries: int, coverage: float, data: st.DataObject) -> None:
    shares = [
        data.draw(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.5, 0.8]), min_size=1, max_size=4))
        for _ in range(num_queries)
    ]
    query = np.repeat(np.arange(num_queries), [len(line) for line in shares])
    positives = Positives(query, np.concatenate(shares), np.full(num_queries, 0.1))
    if num_queries < num_needed(coverage):
        with pytest.raises(ValueError, match=f"needs at least {num_needed(coverage)} calibration queries"):
            conformal_share(positives, coverage)
    else:
        assert conformal_share(positives, coverage) == oracles.conformal_share(shares, coverage)


@pytest.mark.parametrize(("coverage", "needed"), [(0.5, 1), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_how_many_queries_are_needed(coverage: float, needed: int) -> None:
    """With one fewer, not even missing nothing would promise it: 1 / (n + 1) > 1 - c."""
    assert num_needed(coverage) == needed
    positives = drawn(needed, 0)
    assert conformal_share(positives, coverage) == pytest.approx(positives.share.min())
    with pytest.raises(ValueError, match=f"coverage {coverage:g} needs at least {needed} .*, got {needed - 1}"):
        conformal_share(drawn(needed - 1, 0), coverage)


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95])
def test_new_queries_are_covered_as_promised_in_every_segment(coverage: float) -> None:
    """The mean over many calibrations and queries: at least the promise, and above it by no more than 1 / n."""
    covered = []
    for seed in range(60):
        calibration = Calibration.of(drawn(150, seed), BETA)
        new = drawn(300, 1000 + seed)
        segment = calibration.segment(new.temperature)
        kept = new.share >= calibration.shares(coverage)[segment][new.query]
        per_query = np.bincount(new.query, new.weight * kept)
        covered.append([per_query[segment == number].mean() for number in range(3)])
    mean, error = np.mean(covered, axis=0), np.std(covered, axis=0) / np.sqrt(60)
    assert (mean >= coverage - 3 * error).all()
    assert (mean <= coverage + 2 / 50 + 3 * error).all()


def test_the_uncalibrated_mass_is_off_where_a_calibrated_one_is_not() -> None:
    new = drawn(3000, 1)
    assert abs(np.bincount(new.query, new.weight * (new.share >= 0.1)).mean() - 0.9) > 0.05


def test_a_threshold_is_the_score_with_the_share_of_its_segment() -> None:
    calibration = Calibration.of(drawn(300, 0), BETA)
    temperature = np.array([0.03, 0.29, 0.15])
    shares = calibration.shares(0.8)[calibration.segment(temperature)]
    assert calibration.segment(temperature).tolist() == [0, 2, 1]
    expected = [BETA.quantile(float(share), np.array([tau]))[0] for share, tau in zip(shares, temperature, strict=True)]
    assert calibration.threshold(0.8, temperature) == pytest.approx(np.array(expected), abs=2e-7)


@pytest.mark.parametrize("background", [UNIFORM, sphere(64)])
def test_a_positive_whose_share_is_the_limit_is_kept(background: Background) -> None:
    """Rounding on the way from its score to a share and back must not lose it, in float32 either."""
    distribution, generator = BetaDistribution(background), np.random.default_rng(0)
    temperature = generator.uniform(0.01, 0.3, 400)
    score = generator.uniform(-0.2, 0.99, 400).astype(np.float32)
    calibration = Calibration.of(Positives.of(np.arange(400), score, temperature, distribution), distribution)
    for coverage in (0.5, 0.8, 0.9):
        kept = score >= calibration.threshold(coverage, temperature).astype(np.float32)
        for number, share in enumerate(calibration.shares(coverage)):
            own = calibration.segment(temperature) == number
            assert kept[own].sum() == (calibration.positives.share[own] >= share).sum()


def test_positives_of_the_highest_score_are_kept() -> None:
    """A share that rounds to 1 must not become a threshold that no score reaches."""
    temperature = np.full(50, 0.2)
    calibration = Calibration.of(Positives.of(np.arange(50), np.full(50, 1.0), temperature, BETA), BETA)
    assert (calibration.threshold(0.9, temperature) <= 1.0).all()
    assert (calibration.threshold(0.9, temperature) > 0.99).all()


def test_a_segment_with_too_few_queries_takes_the_share_of_all() -> None:
    positives = Positives(np.arange(1000), np.linspace(0, 0.9, 1000), np.repeat([0.01, 0.1], [10, 990]))
    calibration = Calibration(positives, BETA, np.array([0.1]))
    few, many = calibration.shares(0.95)
    assert few == conformal_share(positives, 0.95)
    assert many == conformal_share(positives.take(positives.temperature == 0.1), 0.95)
    assert calibration.shares(0.9)[0] == positives.share[0]  # nine are enough for .9
    with pytest.raises(ValueError, match=r"coverage 0.9999 needs at least 9999 calibration queries, got 1000"):
        calibration.shares(0.9999)


def test_queries_of_one_temperature_are_one_segment() -> None:
    """A model without a trained tau_q: one threshold, the same score for all."""
    calibration = Calibration.of(drawn(200, 0, is_alike=True), BETA)
    assert calibration.num_segments == 1
    assert len(set(calibration.threshold(0.9, np.full(9, 0.1)).tolist())) == 1


def test_queries_without_a_positive_are_left_out() -> None:
    positives = Positives.of(np.array([0, 0, 3]), np.array([0.5, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4]), BETA)
    assert positives.num_queries == 2
    assert positives.query.tolist() == [0, 0, 1]
    assert positives.temperature.tolist() == [0.1, 0.4]
    assert positives.weight.tolist() == [0.5, 0.5, 1.0]


def test_no_positive_at_all() -> None:
    nothing = Positives.of(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0), BETA)
    with pytest.raises(ValueError, match=r"coverage 0.5 needs at least 1 calibration queries, got 0"):
        Calibration.of(nothing, BETA).shares(0.5)


def test_mean_f1_equals_the_definition() -> None:
    generator = np.random.default_rng(0)
    is_relevant = generator.random((20, 8)) < 0.4
    num_kept = generator.integers(0, 9, 20)
    num_relevant = is_relevant.sum(1) + generator.integers(1, 4, 20)
    expected = [
        oracles.list_f1([i < kept for i in range(8)], line.tolist(), int(total))
        for kept, line, total in zip(num_kept, is_relevant, num_relevant, strict=True)
    ]
    assert mean_f1(num_kept, is_relevant, num_relevant) == pytest.approx(np.mean(expected))


def test_finds_the_mass_that_separates() -> None:
    """Relevant items lie just above, others just below the threshold of one mass, which differs by query."""
    mass = float(CANDIDATE_MASSES[30])
    temperature = np.array([0.01, 0.05, 0.1])
    threshold = BETA.quantile(1 - mass, temperature)[:, None]
    scores = np.concatenate([threshold + 0.01, threshold + 1e-6, threshold - 1e-6, threshold - 0.01], axis=1)
    is_relevant = np.array([[True, True, False, False]] * 3)
    found, f1 = best_mass(scores, is_relevant, np.array([2, 2, 2]), temperature, BETA)
    assert found == mass
    assert f1 == 1


def test_no_query() -> None:
    with pytest.raises(ValueError, match="at least 1 held-out query, got none"):
        best_mass(np.empty((0, 3)), np.empty((0, 3), dtype=bool), np.empty(0, dtype=int), np.empty(0), BETA)
