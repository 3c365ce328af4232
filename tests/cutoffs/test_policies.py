import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.cutoffs
import oracles.losses
from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.calibration import Calibration, Positives
from rails_ray.cutoffs.distributions import UNIFORM, BetaDistribution
from rails_ray.cutoffs.policies import (
    CoverageCutoff,
    MassCutoff,
    NucleusCutoff,
    ProbabilityCutoff,
    ScoreCutoff,
    TopKCutoff,
    cut,
)
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.modules.losses.exp_nce import exp_logit
from rails_ray.search.zeros import NO_COSINE

SCORES = np.array([[0.9, 0.8, 0.1], [0.3, 0.2, 0.1]])
TEMPERATURE = np.array([0.1, 0.5])
BETA = BetaDistribution(UNIFORM)
NO, YES = np.array([False, False]), np.array([True, True])


def calibration(num_queries: int = 200) -> Calibration:
    generator = np.random.default_rng(0)
    query, score = np.arange(num_queries), generator.uniform(0.2, 0.9, num_queries)
    return Calibration(Positives.of(query, score, generator.uniform(0.05, 0.5, num_queries), BETA), BETA)


def nucleus(
    share: float, scores: np.ndarray = SCORES, temperature: np.ndarray = TEMPERATURE, **limits
) -> NucleusCutoff:
    """Over a corpus that is the list itself."""
    logits = exp_logit(torch.from_numpy(scores), torch.from_numpy(temperature))
    return NucleusCutoff(exp_logit, logits.logsumexp(1).numpy(), share, scores.shape[1], **limits)


def probability(value: float, **limits) -> ProbabilityCutoff:
    """Over a corpus that is the list itself."""
    logits = exp_logit(torch.from_numpy(SCORES), torch.from_numpy(TEMPERATURE))
    return ProbabilityCutoff(exp_logit, logits.logsumexp(1).numpy(), value, **limits)


POLICIES = {
    "top_k": lambda **limits: TopKCutoff(2, **limits),
    "score": lambda **limits: ScoreCutoff(0.2, **limits),
    "mass": lambda **limits: MassCutoff(0.5, BETA, **limits),
    "coverage": lambda **limits: CoverageCutoff(0.5, calibration(), **limits),
    "nucleus": lambda **limits: nucleus(0.5, **limits),
    "probability": lambda **limits: probability(0.3, **limits),
}


@pytest.mark.parametrize("name", POLICIES)
class TestContract:
    def test_is_a_cutoff(self, name: str) -> None:
        assert isinstance(POLICIES[name](), Cutoff)

    def test_what_is_kept_reaches_the_threshold_and_what_is_not_does_not(self, name: str) -> None:
        policy = POLICIES[name]()
        done = cut(SCORES, TEMPERATURE, policy, NO)
        for line, kept, threshold in zip(SCORES, done.num_kept, done.threshold, strict=True):
            assert (line[:kept] >= threshold).all()
            assert policy.num_wanted == kept or (line[kept:] < threshold).all()

    def test_nothing_below_the_floor_is_kept(self, name: str) -> None:
        policy = POLICIES[name]()
        done = cut(SCORES, TEMPERATURE, policy, NO)
        for line, kept, floor in zip(SCORES, done.num_kept, policy.floor(TEMPERATURE), strict=True):
            assert (line[:kept] >= floor).all()

    def test_limits_come_before_scores(self, name: str) -> None:
        assert cut(SCORES, TEMPERATURE, POLICIES[name](max_items=1), NO).num_kept.max() <= 1
        assert cut(SCORES, TEMPERATURE, POLICIES[name](min_items=2), NO).num_kept.min() >= 2
        assert cut(SCORES, TEMPERATURE, POLICIES[name](min_items=9), NO).num_kept.max() <= 3  # all that there are

    def test_places_without_an_item_are_never_kept(self, name: str) -> None:
        scores = np.array([[0.9, -np.inf, -np.inf], [-np.inf] * 3])
        for limits in ({}, {"min_items": 2}):
            assert cut(scores, TEMPERATURE, POLICIES[name](**limits), NO).num_kept.tolist()[1] == 0
            assert cut(scores, TEMPERATURE, POLICIES[name](**limits), NO).num_kept.tolist()[0] <= 1

    def test_an_empty_list_and_no_query(self, name: str) -> None:
        assert cut(np.empty((2, 0)), TEMPERATURE, POLICIES[name](), NO).num_kept.tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ({"min_items": -1}, "min_items must be at least 0, got -1"),
            ({"max_items": 0}, "max_items must be at least 1 and at least the 0 of min_items, got 0"),
            ({"min_items": 3, "max_items": 2}, "max_items must be at least 1 and at least the 3 of min_items, got 2"),
        ],
    )
    def test_limits_that_cannot_be(self, name: str, limits: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            POLICIES[name](**limits)

    def test_a_list_that_ends_where_nothing_more_is_wanted_is_not_truncated(self, name: str) -> None:
        """And one that lacks what qualifies is."""
        policy = POLICIES[name]()
        whole = cut(SCORES, TEMPERATURE, policy, NO)
        for line, kept in enumerate(whole.num_kept.tolist()):
            own = POLICIES[name]() if name != "nucleus" else nucleus(0.5)
            lists = np.where(np.arange(3) < kept, SCORES, -np.inf)
            is_truncated = cut(lists, TEMPERATURE, own, YES).is_truncated[line]
            assert is_truncated == (name not in ("top_k", "nucleus"))  # others cannot know what lies below the list


def test_score_keeps_what_reaches_it() -> None:
    done = cut(SCORES, TEMPERATURE, ScoreCutoff(0.2), NO)
    assert done.num_kept.tolist() == [2, 2]
    assert done.threshold.tolist() == [0.2, 0.2]
    assert done.is_truncated.tolist() == [False, False]


def test_mass_cuts_each_query_at_its_own_score() -> None:
    done = cut(SCORES, TEMPERATURE, MassCutoff(0.5, BETA), NO)
    assert done.threshold.tolist() == pytest.approx([2 * 0.5 ** (1 / 11) - 1, 2 * 0.5 ** (1 / 3) - 1])
    assert done.num_kept.tolist() == [1, 0]


def test_coverage_cuts_where_its_calibration_says() -> None:
    own = calibration()
    done = cut(SCORES, TEMPERATURE, CoverageCutoff(0.8, own), NO)
    assert done.threshold.tolist() == own.threshold(0.8, TEMPERATURE).tolist()


def test_top_k_keeps_a_number() -> None:
    done = cut(SCORES, TEMPERATURE, TopKCutoff(2), YES)
    assert done.num_kept.tolist() == [2, 2]
    assert done.threshold.tolist() == [-np.inf, -np.inf]
    assert not done.is_truncated.any()
    assert cut(SCORES, TEMPERATURE, TopKCutoff(5), YES).is_truncated.tolist() == [True, True]
    assert cut(SCORES, TEMPERATURE, TopKCutoff(5), NO).is_truncated.tolist() == [False, False]
    fewer = cut(SCORES, TEMPERATURE, TopKCutoff(2, max_items=1), YES)
    assert (fewer.num_kept.tolist(), fewer.is_truncated.tolist()) == ([1, 1], [True, True])


@pytest.mark.parametrize("logit", [exp_logit, beta_logit])
@given(st.data())
def test_nucleus_is_the_fewest_items_that_hold_the_mass(logit, data: st.DataObject) -> None:
    """Against the definition over a corpus of which the list shows the best; ties at the end are all kept."""
    scores = sorted(data.draw(st.lists(st.floats(-1, 1, width=16), min_size=1, max_size=12)), reverse=True)
    tau_q, share = data.draw(st.floats(0.02, 2)), data.draw(st.floats(0.01, 0.99))
    own = {exp_logit: lambda score, tau: (score - 1) / tau, beta_logit: oracles.losses.beta_logit}[logit]
    weights = [math.exp(own(score, tau_q) - own(scores[0], tau_q)) for score in scores]
    expected = oracles.cutoffs.nucleus(weights, share)
    log_normaliser = np.array([math.log(sum(weights)) + own(scores[0], tau_q)])
    policy = NucleusCutoff(logit, log_normaliser, share, len(scores))
    kept = cut(np.array([scores]), np.array([tau_q]), policy, np.array([False])).num_kept[0]
    held = sum(weights[:kept]) / sum(weights)
    assert kept >= expected or held == pytest.approx(share)
    assert all(score == scores[expected - 1] for score in scores[expected:kept]) or held == pytest.approx(share)
    assert (policy.floor(np.array([tau_q])) <= scores[kept - 1]).all()


def test_probability_keeps_what_the_softmax_gives_as_much() -> None:
    shares = torch.from_numpy(SCORES / TEMPERATURE[:, None]).softmax(1)
    for value in (0.01, 0.25, 0.3, 0.35, 0.6, 0.9):
        kept = cut(SCORES, TEMPERATURE, probability(value), NO).num_kept
        assert kept.tolist() == (shares >= value).sum(1).tolist()


def test_a_nucleus_that_the_list_does_not_hold_is_truncated() -> None:
    whole = np.array([[0.9, 0.8, 0.7, 0.6]])
    policy = nucleus(0.9, whole, np.array([0.5]))
    done = cut(whole[:, :2], np.array([0.5]), policy, np.array([True]))
    assert done.num_kept.tolist() == [2]
    assert done.is_truncated.tolist() == [True]
    limited = nucleus(0.9, whole, np.array([0.5]), max_items=2)
    assert cut(whole[:, :2], np.array([0.5]), limited, np.array([True])).is_truncated.tolist() == [True]


def test_a_list_that_ends_above_the_threshold_is_truncated() -> None:
    assert cut(SCORES, TEMPERATURE, ScoreCutoff(0.1), YES).is_truncated.tolist() == [True, True]
    assert cut(SCORES, TEMPERATURE, ScoreCutoff(0.1), NO).is_truncated.tolist() == [False, False]
    assert cut(SCORES, TEMPERATURE, ScoreCutoff(0.2), YES).is_truncated.tolist() == [False, False]
    assert cut(SCORES, TEMPERATURE, ScoreCutoff(0.2, max_items=1), NO).is_truncated.tolist() == [True, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MassCutoff(1.0, BETA), "mass must be above 0 and below 1, got 1.0"),
        (lambda: MassCutoff(math.nan, BETA), "mass must be above 0 and below 1, got nan"),
        (lambda: CoverageCutoff(0.0, calibration()), "coverage must be above 0 and below 1, got 0.0"),
        (lambda: probability(0.0), "probability must be above 0 and below 1, got 0.0"),
        (lambda: nucleus(-1.0), "nucleus must be above 0 and below 1, got -1.0"),
        (lambda: ScoreCutoff(float("nan")), "score must be a number, got nan"),
        (lambda: TopKCutoff(0), "top_k must be at least 1, got 0"),
        (
            lambda: CoverageCutoff(0.99, calibration(90)),
            "coverage 0.99 needs at least 99 calibration queries, got 90: ask for less",
        ),
    ],
)
def test_out_of_range(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "policy", [ScoreCutoff(-1.0), MassCutoff(1 - 1e-12, BETA), CoverageCutoff(0.99, calibration())], ids=str
)
def test_an_item_without_a_direction_is_kept_only_for_min_items(policy) -> None:
    scores = np.array([[0.9, -1.0, NO_COSINE], [0.8, NO_COSINE, NO_COSINE]], dtype=np.float32)
    done = cut(scores, TEMPERATURE, policy, NO)
    assert (done.num_kept <= [2, 1]).all()
    assert (done.threshold > NO_COSINE).all()
    assert cut(scores, TEMPERATURE, replace(policy, min_items=3), NO).num_kept.tolist() == [3, 3]


@pytest.mark.parametrize("score", [1.7, -2.5, np.nan])
def test_a_mass_is_of_scores_between_minus_1_and_1(score: float) -> None:
    scores = np.array([[score, 0.5], [0.3, 0.2]])
    with pytest.raises(ValueError, match=rf"cutoff mass needs scores in \[-1, 1\], got {score:g}: take coverage"):
        cut(scores, TEMPERATURE, MassCutoff(0.5, BETA), NO)
    rounded = np.array([[1.0000001, 0.5], [-1.0000001, -np.inf]])
    assert cut(rounded, TEMPERATURE, MassCutoff(0.5, BETA), NO).num_kept.tolist() == [1, 0]


@pytest.mark.parametrize("name", ["mass", "coverage", "nucleus", "probability"])
def test_tau_q_that_is_not_finite(name: str) -> None:
    with pytest.raises(ValueError, match="tau_q must be finite and above 0, got nan for query 1"):
        POLICIES[name]().floor(np.array([0.1, np.nan]))


def test_a_query_without_any_item_left_has_an_empty_nucleus() -> None:
    policy = NucleusCutoff(exp_logit, np.array([-np.inf, 1.0]), 0.5, 3)
    assert cut(np.full((2, 3), -np.inf), TEMPERATURE, policy, NO).num_kept.tolist() == [0, 0]
