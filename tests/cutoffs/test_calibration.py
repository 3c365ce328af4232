import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import oracles.cutoffs
import oracles.ranking
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
from support.calibrations import BETA, drawn
from support.tried import tried

TAU = st.sampled_from([0.05, 0.1, 0.2]) | st.floats(0.01, 0.3)  # with ties and without


def bag(num_queries: int, data: st.DataObject) -> tuple[list[list[float]], list[float]]:
    """Queries, some of them alike: shares of their positives, tau_q."""
    share = st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.5, 0.8])
    query = st.tuples(st.lists(share, min_size=1, max_size=4), TAU)
    queries = data.draw(st.lists(query, min_size=num_queries, max_size=num_queries))
    return [shares for shares, _ in queries], [tau for _, tau in queries]


def positives_of(shares: list[list[float]], tau: list[float]) -> Positives:
    query = np.repeat(np.arange(len(tau)), [len(line) for line in shares])
    return Positives(query, np.array([share for line in shares for share in line]), np.array(tau))


@given(st.integers(1, 30), st.floats(0.05, 0.9), st.data())
def test_the_share_equals_its_definition(num_queries: int, coverage: float, data: st.DataObject) -> None:
    shares, tau = bag(num_queries, data)
    positives = positives_of(shares, tau)
    if num_queries < num_needed(coverage):
        with pytest.raises(ValueError, match=f"needs at least {num_needed(coverage)} calibration queries"):
            conformal_share(positives, coverage)
    else:
        assert conformal_share(positives, coverage) == oracles.cutoffs.conformal_share(shares, coverage)


@pytest.mark.parametrize(("coverage", "needed"), [(0.5, 1), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_how_many_queries_are_needed(coverage: float, needed: int) -> None:
    """With one fewer, not even missing nothing would promise it: 1 / (n + 1) > 1 - c."""
    assert num_needed(coverage) == needed
    positives = drawn(needed, 0)
    assert conformal_share(positives, coverage) == pytest.approx(positives.share.min())
    with pytest.raises(ValueError, match=f"coverage {coverage:g} needs at least {needed} .*, got {needed - 1}"):
        conformal_share(drawn(needed - 1, 0), coverage)


@given(st.integers(0, 30), st.integers(1, 4), st.floats(0.05, 0.9), st.data())
def test_the_share_of_a_new_query_equals_its_definition(
    num_queries: int, num_segments: int, coverage: float, data: st.DataObject
) -> None:
    """With ties of tau_q and without, at the tau_q of calibration queries and between them."""
    shares, tau = bag(num_queries, data)
    new = [data.draw(TAU), *tau]
    calibration = Calibration(positives_of(shares, tau), BETA, num_segments)
    if num_queries < num_needed(coverage):
        for call in (lambda: calibration.shares(coverage, np.array(new)), lambda: calibration.check(coverage)):
            with pytest.raises(ValueError, match=f"at least {num_needed(coverage)} .* queries, got {num_queries}:"):
                call()
    else:
        calibration.check(coverage)
        expected = [oracles.cutoffs.calibrated_share(shares, tau, t, num_segments, coverage) for t in new]
        assert calibration.shares(coverage, np.array(new)).tolist() == expected


@tried()
@given(st.integers(2, 30), st.integers(1, 4), st.sampled_from([0.2, 0.5, 2 / 3, 0.75, 0.8, 0.9]), st.data())
def test_queries_are_covered_as_promised_when_each_is_the_new_one_in_turn(
    num_queries: int, num_segments: int, coverage: float, data: st.DataObject
) -> None:
    """What exchangeability comes down to, with no draw and no error: for any n + 1 queries, duplicates and ties
    included, the mean coverage of each one by the others is at least what was promised."""
    assume(num_queries - 1 >= num_needed(coverage))
    positives = positives_of(*bag(num_queries, data))
    assert left_out_coverage(positives, num_segments, coverage) >= coverage - 1e-7


def test_the_promise_holds_in_each_segment() -> None:
    """30 queries are 3 segments of 10, and 10 are just enough to miss one of 10; the hard third misses it as well."""
    tau = np.arange(1, 31) / 100
    share = np.random.default_rng(0).uniform(np.repeat([0.5, 0.0, 0.8], 10), np.repeat([0.6, 0.1, 0.9], 10))
    positives = Positives(np.arange(30), share, tau)
    for number in range(3):
        assert left_out_coverage(positives, 3, 0.9, slice(10 * number, 10 * number + 10)) == 0.9


def left_out_coverage(positives: Positives, num_segments: int, coverage: float, asked: slice = slice(None)) -> float:
    """The mean of what is covered of each query, with the others for calibration."""
    covered = []
    for query in range(positives.num_queries)[asked]:
        is_other = np.arange(positives.num_queries) != query
        calibration, new = Calibration(positives.take(is_other), BETA, num_segments), positives.take(~is_other)
        covered.append((new.share >= calibration.shares(coverage, new.temperature)).mean())
    return float(np.mean(covered))


# Shares of positives by the third that a query's tau_q lies in; "ramp": they fall with tau_q.
THIRDS = {"low": (0.0, 0.6, 0.6), "middle": (0.6, 0.0, 0.6), "high": (0.6, 0.6, 0.0)}


def adversarial(kind: str, hard: str, num_queries: int, generator: np.random.Generator) -> Positives:
    """Queries of which those with some tau_q have far harder positives."""
    tau = generator.uniform(0, 3, num_queries)
    if kind == "ties":
        tau = generator.choice([0.5, 1.5, 2.5], num_queries)
    elif kind == "mass":
        tau = np.where(generator.random(num_queries) < 0.45, 1.0, tau)
    elif kind == "duplicates":  # of ten queries
        tau = generator.integers(10, size=num_queries) * 0.3 + 0.1
    within = np.modf(tau * 7919)[0] if kind == "duplicates" else generator.random(num_queries)
    share = (3 - tau) / 3.1 if hard == "ramp" else np.array(THIRDS[hard])[tau.astype(int)] + within / 4
    return Positives(np.arange(num_queries), share, tau + 0.01)


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_queries", "coverage", "num_members", "num_trials"),
    [(13, 0.8, 13, 500), (26, 0.9, 26, 500), (29, 0.9, 9, 500), (296, 0.99, 296, 500), (100, 0.8, 32, 200)],
)
@pytest.mark.parametrize("hard", [*THIRDS, "ramp"])
@pytest.mark.parametrize("kind", ["plain", "ties", "mass", "duplicates"])
def test_new_queries_are_covered_as_promised_whichever_are_hard(
    kind: str, hard: str, num_queries: int, coverage: float, num_members: int, num_trials: int
) -> None:
    """Few queries, about 3 num_needed, and many; where tau_q differ, coverage is hardly above the promise either."""
    covered = []
    for trial in range(num_trials):
        generator = np.random.default_rng([trial, num_queries])
        calibration = Calibration(adversarial(kind, hard, num_queries, generator), BETA)
        new = adversarial(kind, hard, 50, generator)
        covered.append((new.share >= calibration.shares(coverage, new.temperature)).mean())
    mean, error = np.mean(covered), np.std(covered, ddof=1) / np.sqrt(num_trials)
    told = f"coverage {mean:.4f} +- {error:.4f} of {kind} queries, {hard} hard, promised {coverage}"
    assert mean >= coverage - 3 * error, told
    if kind == "plain":
        assert mean <= coverage + 1.5 / (num_members + 1) + 3 * error, told


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95])
def test_new_queries_are_covered_as_promised_in_every_segment(coverage: float) -> None:
    """The mean over many calibrations and queries: at least the promise, and above it by no more than 1 / n."""
    covered = []
    for seed in range(60):
        calibration = Calibration(drawn(150, seed), BETA)
        new = drawn(300, 1000 + seed)
        segment = calibration.segments.number(new.temperature)
        kept = new.share >= calibration.shares(coverage, new.temperature)[new.query]
        per_query = np.bincount(new.query, new.weight * kept)
        covered.append([per_query[segment == number].mean() for number in range(3)])
    mean, error = np.mean(covered, axis=0), np.std(covered, axis=0) / np.sqrt(60)
    assert (mean >= coverage - 3 * error).all()
    assert (mean <= coverage + 2 / 50 + 3 * error).all()


def test_the_uncalibrated_mass_is_off_where_a_calibrated_one_is_not() -> None:
    new = drawn(3000, 1)
    assert abs(np.bincount(new.query, new.weight * (new.share >= 0.1)).mean() - 0.9) > 0.05


def test_a_threshold_is_the_score_with_the_share_of_its_segment() -> None:
    calibration = Calibration(drawn(300, 0), BETA)
    temperature = np.array([0.03, 0.29, 0.15])
    shares = calibration.shares(0.8, temperature)
    assert calibration.segments.number(temperature).tolist() == [0, 2, 1]
    assert len(set(shares.tolist())) == 3
    expected = [BETA.quantile(float(share), np.array([tau]))[0] for share, tau in zip(shares, temperature, strict=True)]
    assert calibration.threshold(0.8, temperature) == pytest.approx(np.array(expected), abs=2e-7)


@pytest.mark.parametrize("background", [UNIFORM, sphere(64)])
def test_a_positive_whose_share_is_the_limit_is_kept(background: Background) -> None:
    """Rounding on the way from its score to a share and back must not lose it, in float32 either."""
    distribution, generator = BetaDistribution(background), np.random.default_rng(0)
    temperature = generator.uniform(0.01, 0.3, 400)
    score = generator.uniform(-0.2, 0.99, 400).astype(np.float32)
    calibration = Calibration(Positives.of(np.arange(400), score, temperature, distribution), distribution)
    for coverage in (0.5, 0.8, 0.9):
        kept = score >= calibration.threshold(coverage, temperature).astype(np.float32)
        limit = calibration.shares(coverage, temperature)
        assert (calibration.positives.share == limit).any()
        assert (kept == (calibration.positives.share >= limit)).all()


def test_positives_of_the_highest_score_are_kept() -> None:
    """A share that rounds to 1 must not become a threshold that no score reaches."""
    temperature = np.full(50, 0.2)
    calibration = Calibration(Positives.of(np.arange(50), np.full(50, 1.0), temperature, BETA), BETA)
    assert (calibration.threshold(0.9, temperature) <= 1.0).all()
    assert (calibration.threshold(0.9, temperature) > 0.99).all()


def test_a_segment_with_too_few_queries_makes_all_of_them_one() -> None:
    tau = np.repeat([0.1, 0.2], [500, 10])
    positives = Positives(np.arange(510), np.linspace(0.9, 0, 510), tau)
    calibration = Calibration(positives, BETA, num_segments=2)
    below, above = (positives.take(tau == value) for value in (0.1, 0.2))
    asked = np.array([0.1, 0.3])
    expected = [conformal_share(part, 0.9) for part in (below, above)]
    assert calibration.shares(0.9, asked).tolist() == expected, "ten queries and a new one are enough for .9"
    assert calibration.shares(0.95, asked).tolist() == [conformal_share(positives, 0.95)] * 2


def test_queries_of_one_temperature_are_one_segment() -> None:
    """A model without a trained tau_q: one threshold, the same score for all."""
    calibration = Calibration(drawn(200, 0, is_alike=True), BETA)
    assert len(calibration.segments.edges) == 0
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
        Calibration(nothing, BETA).shares(0.5, np.full(1, 0.1))


def test_mean_f1_equals_the_definition() -> None:
    generator = np.random.default_rng(0)
    is_relevant = generator.random((20, 8)) < 0.4
    num_kept = generator.integers(0, 9, 20)
    num_relevant = is_relevant.sum(1) + generator.integers(1, 4, 20)
    expected = [
        oracles.ranking.list_f1([i < kept for i in range(8)], line.tolist(), int(total))
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
