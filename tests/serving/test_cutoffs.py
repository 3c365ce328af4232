"""Which cut-off a request gets of which version, and what is said where a version cannot do it."""

from dataclasses import replace

import numpy as np
import pytest
from starlette.exceptions import HTTPException

from rails_ray.cutoffs.calibration import Calibration
from rails_ray.cutoffs.distributions import UNIFORM, Background, BetaDistribution, ExpDistribution, sphere
from rails_ray.cutoffs.policies import CoverageCutoff, MassCutoff, NucleusCutoff, OfSoftmax, ScoreCutoff, TopKCutoff
from rails_ray.cutoffs.temperatures import Factor, Factors, Tempered
from rails_ray.errors import UnsupportedError
from rails_ray.families.recipes.baselines import baseline_bm25
from rails_ray.families.training_family import training_family
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.losses.exp_nce import exp_logit
from rails_ray.schema.requests import CutoffInput
from rails_ray.serving.cutoffs import Cutoffs
from rails_ray.serving.http.api import as_http_errors
from support.calibrations import BETA, STORED, drawn
from support.examples import small_config

CONFIG = small_config()
FITTED = Background(30.0, 40.0)
CALIBRATION = Calibration(drawn(300, 0), BETA)
PLAIN = Cutoffs(training_family(CONFIG).cutoff_support, num_items=60, version_mass=0.9)
STORED_FITTED = replace(STORED, fitted=FITTED)
CALIBRATED = replace(PLAIN, calibration=CALIBRATION, stored=STORED_FITTED)
UNTRAINED = Cutoffs(
    training_family(CONFIG.with_family(loss=ContrastiveConfig(kind="sampled_softmax"))).cutoff_support,
    num_items=60,
    version_mass=None,
)

UNBOUNDED = Cutoffs(training_family(baseline_bm25()).cutoff_support, num_items=60, version_mass=None)


def test_a_request_comes_before_the_deployment_and_that_before_the_version() -> None:
    deployed = replace(PLAIN, default=CutoffInput(coverage=0.8))
    assert deployed.resolve(CutoffInput(score=0.1), 7) == CutoffInput(score=0.1)
    assert deployed.resolve(None, 7) == CutoffInput(coverage=0.8, min_items=1)
    assert PLAIN.resolve(None, 7) == CutoffInput(mass=0.9, min_items=1)
    assert UNTRAINED.resolve(None, 7) == CutoffInput(top_k=7)
    assert UNTRAINED.resolve(None, None) == CutoffInput(top_k=10)


@pytest.mark.parametrize(
    ("cutoff", "k", "limit"),
    [
        (CutoffInput(mass=0.5), None, 60),  # all there are
        (CutoffInput(mass=0.5, min_items=70), None, 60),
        (CutoffInput(mass=0.5), 30, 30),
        (CutoffInput(mass=0.5, max_items=20), None, 20),
        (CutoffInput(mass=0.5, max_items=20), 30, 20),
        (CutoffInput(mass=0.5, max_items=40), 30, 30),
        (CutoffInput(top_k=40), None, 40),
        (CutoffInput(top_k=40), 30, 30),
    ],
)
def test_the_least_of_the_numbers_given_ends_a_list(cutoff: CutoffInput, k: int | None, limit: int) -> None:
    assert PLAIN.limit(cutoff, k) == limit


def test_each_field_is_its_policy() -> None:
    limits = {"min_items": 2, "max_items": 9}
    assert CALIBRATED.policy(CutoffInput(score=0.1, min_items=2), 9) == ScoreCutoff(0.1, **limits)
    assert CALIBRATED.policy(CutoffInput(top_k=5, min_items=2), 9) == TopKCutoff(5, **limits)
    assert CALIBRATED.policy(CutoffInput(coverage=0.8, min_items=2), 9) == CoverageCutoff(0.8, CALIBRATION, **limits)
    nucleus = CALIBRATED.policy(CutoffInput(nucleus=0.5, min_items=2), 9, np.zeros(1))
    assert isinstance(nucleus, NucleusCutoff)
    assert (nucleus.nucleus, nucleus.num_items, nucleus.min_items, nucleus.max_items) == (0.5, 60, 2, 9)


@pytest.mark.parametrize(
    ("background", "expected"),
    [(None, UNIFORM), ("uniform", UNIFORM), ("sphere", sphere(CONFIG.family.components.width)), ("fitted", FITTED)],
)
def test_a_mass_is_of_the_losss_distribution_over_a_background(background: str | None, expected: Background) -> None:
    asked = CutoffInput(mass=0.5, background=background)
    assert CALIBRATED.policy(asked, 9) == MassCutoff(0.5, BetaDistribution(expected), max_items=9)
    exp = replace(
        CALIBRATED,
        cutoff_support=training_family(CONFIG.with_family(loss=ContrastiveConfig(kind="exp_nce"))).cutoff_support,
    )
    assert exp.policy(asked, 9) == MassCutoff(0.5, ExpDistribution(expected), max_items=9)
    assert exp.policy(CutoffInput(nucleus=0.5), 9, np.zeros(1)).logit is exp_logit


def test_fitted_temperatures_reach_every_cut_off_that_rests_on_them() -> None:
    factors = Factors({"uniform": Factor(9.0, 8.0, 10.0, 90)}, Factor(2.0, 1.9, 2.1, 90))
    fitted = replace(CALIBRATED, stored=replace(STORED_FITTED, factors=factors))
    tempered_uniform = Tempered(BetaDistribution(UNIFORM), 9.0)
    assert fitted.policy(CutoffInput(mass=0.5), 9) == MassCutoff(0.5, tempered_uniform, max_items=9)
    sphere_only = CutoffInput(mass=0.5, background="sphere")  # of which no temperature was fitted
    assert fitted.policy(sphere_only, 9) == CALIBRATED.policy(sphere_only, 9)
    assert fitted.policy(CutoffInput(coverage=0.8), 9) == CALIBRATED.policy(CutoffInput(coverage=0.8), 9)
    assert (CALIBRATED.softmax_factor, fitted.softmax_factor) == (1.0, 2.0)
    scores, tau = np.array([[0.9, 0.8, -0.2]]), np.array([0.05])
    for asked in (CutoffInput(nucleus=0.5), CutoffInput(probability=0.5)):
        found, plain = (own.policy(asked, 9, np.array([-3.0])) for own in (fitted, CALIBRATED))
        assert isinstance(found, OfSoftmax)
        assert isinstance(plain, OfSoftmax)
        assert found.log_probability(scores, tau) == pytest.approx(plain.log_probability(scores, 2 * tau))


def test_a_mass_without_a_background_is_of_the_one_that_calibration_fitted() -> None:
    factors = Factors({"held_out": Factor(1.2, 1.1, 1.3, 90)})
    fitted = replace(CALIBRATED, stored=replace(STORED_FITTED, factors=factors, held_out=Background(0.5, 7.0)))
    expected = MassCutoff(0.5, Tempered(BetaDistribution(Background(0.5, 7.0)), 1.2), max_items=9)
    assert fitted.policy(CutoffInput(mass=0.5), 9) == expected
    assert fitted.policy(CutoffInput(mass=0.5, background="held_out"), 9) == expected
    with pytest.raises(UnsupportedError, match="background held_out needs a version that is calibrated, got one that"):
        PLAIN.policy(CutoffInput(mass=0.5, background="held_out"), 9)


@pytest.mark.parametrize(
    ("cutoffs", "asked", "message"),
    [
        (
            PLAIN,
            CutoffInput(coverage=0.8),
            "cutoff coverage needs a version that is calibrated, got one that is not: run `rails-ray calibrate`",
        ),
        (
            PLAIN,
            CutoffInput(mass=0.8, background="fitted"),
            "background fitted needs a version that is calibrated, got one that is not: run `rails-ray calibrate`",
        ),
        (
            UNBOUNDED,
            CutoffInput(coverage=0.8),
            r"calibration needs scores in \[-1, 1\], got a model whose .*: take score or top_k",
        ),
        (
            UNTRAINED,
            CutoffInput(mass=0.8),
            r"cutoff mass needs a model with a trained tau_q, got one without \(loss sampled_softmax\): take coverage",
        ),
    ],
)
def test_what_a_version_lacks_is_409(cutoffs: Cutoffs, asked: CutoffInput, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        cutoffs.policy(asked, 9)
    with pytest.raises(HTTPException) as refused, as_http_errors():
        cutoffs.policy(asked, 9)
    assert refused.value.status_code == 409


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (CutoffInput(coverage=0.999), "coverage 0.999 needs at least 999 calibration queries, got 300: ask"),
        (CutoffInput(score=1.5), r"cutoff\.score must be in \[-1, 1\], as scores of this model are, got 1\.5"),
    ],
)
def test_values_that_cannot_be_are_422(asked: CutoffInput, message: str) -> None:
    with pytest.raises(HTTPException, match=message) as refused, as_http_errors():
        CALIBRATED.policy(asked, 9)
    assert refused.value.status_code == 422


def test_a_list_that_cannot_hold_what_it_must_keep() -> None:
    with pytest.raises(ValueError, match="min_items must be at most the 9 items of a list, got 10"):
        CALIBRATED.limit(CutoffInput(score=0.1, min_items=10), 9)


@pytest.mark.parametrize(("asked", "k"), [(CutoffInput(top_k=61), None), (CutoffInput(score=0.1), 61)])
def test_a_list_holds_no_more_than_there_is(asked: CutoffInput, k: int | None) -> None:
    assert CALIBRATED.limit(asked, k) == 60


@pytest.mark.parametrize(
    ("default", "k", "expected"),
    [
        (None, None, CutoffInput(mass=0.9, min_items=1)),
        (None, 3, CutoffInput(mass=0.9, min_items=1)),
        (CutoffInput(score=0.5), None, CutoffInput(score=0.5, min_items=1)),
        (CutoffInput(score=0.5, min_items=0), None, CutoffInput(score=0.5)),
        (CutoffInput(score=0.5, min_items=7), 3, CutoffInput(score=0.5, min_items=3)),
        (CutoffInput(top_k=5), 9, CutoffInput(top_k=5)),
    ],
)
def test_a_cut_off_that_no_request_names_keeps_the_best_item(
    default: CutoffInput | None, k: int | None, expected: CutoffInput
) -> None:
    """Unless the deployment says otherwise."""
    cutoffs = replace(PLAIN, version_mass=0.9, default=default)
    assert cutoffs.resolve(None, k) == expected
    assert cutoffs.resolve(CutoffInput(mass=0.5), k) == CutoffInput(mass=0.5)
