from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats

import oracles.cutoffs
from rails_ray.cutoffs.distributions import (
    UNIFORM,
    Background,
    BetaDistribution,
    ExpDistribution,
    ScoreDistribution,
    fitted,
    sphere,
)
from support.tried import tried

TEMPERATURES = np.array([1e-3, 0.0113, 0.07, 0.5, 10.0])
# Enough between them, of all tables, to see what interpolation does.
MANY_TEMPERATURES = np.exp(np.random.default_rng(0).uniform(np.log(1e-3), np.log(10), 2000))
BACKGROUNDS = [
    pytest.param(UNIFORM, id="uniform"),
    *(pytest.param(sphere(width), id=f"sphere({width})") for width in (8, 64, 128, 768, 4096)),
    pytest.param(Background(40.0, 55.0), id="asymmetric"),
]
BOTH = [
    pytest.param(BetaDistribution, oracles.cutoffs.beta_mass_below, id="beta"),
    pytest.param(ExpDistribution, oracles.cutoffs.exp_mass_below, id="exp"),
]
EITHER = [BetaDistribution, ExpDistribution]

backgrounds = st.builds(Background, st.floats(0.5, 3000.0), st.floats(0.5, 3000.0)) | st.just(UNIFORM)
distributions = st.builds(lambda kind, background: kind(background), st.sampled_from(EITHER), backgrounds)


def is_quantile(distribution: ScoreDistribution, share: float, temperature: NDArray[np.float64]) -> bool:
    """Whether the share lies below it and not below 1e-6 less, by `mass_below`."""
    scores = distribution.quantile(share, temperature)
    assert (np.abs(scores) <= 1).all()
    lower, upper = (distribution.mass_below(scores + error, temperature) for error in (-1e-6, 1e-6))
    return bool(((lower <= share) & (share <= upper)).all())


# 1. What the equations say


@pytest.mark.parametrize("tau_q", TEMPERATURES)
@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize(("kind", "oracle"), BOTH)
def test_mass_and_quantile_equal_the_oracle(
    kind: Callable[..., ScoreDistribution], oracle: Callable[..., float], background: Background, tau_q: float
) -> None:
    distribution = kind(background)
    for share in (1e-4, 0.3, 1 - 1e-4):
        score = float(distribution.quantile(share, tau_q))
        expected = float(oracle(score, tau_q, background.a, background.b))
        density = float(np.diff(distribution.mass_below(score + np.array([-1e-6, 1e-6]), tau_q))[0]) / 2e-6
        assert float(distribution.mass_below(score, tau_q)) == pytest.approx(expected, rel=1e-10)
        assert abs(expected - share) / density < 1e-7


@pytest.mark.parametrize("share", [1e-15, 1e-100, 1e-300])
@pytest.mark.parametrize("background", [UNIFORM, sphere(64), sphere(768)], ids=["uniform", "64", "768"])
@pytest.mark.parametrize(("kind", "oracle"), BOTH)
def test_far_below_float64s_precision_of_a_mass(
    kind: Callable[..., ScoreDistribution], oracle: Callable[..., float], background: Background, share: float
) -> None:
    distribution = kind(background)
    score = float(distribution.quantile(share, 1e-3))
    assert float(distribution.mass_below(score, 1e-3)) == pytest.approx(
        float(oracle(score, 1e-3, background.a, background.b)), rel=1e-10
    )
    assert is_quantile(distribution, share, TEMPERATURES)


@pytest.mark.parametrize("share", [1e-300, 1e-15, 1e-4, 0.015, 0.5, 1 - 1e-4])
@pytest.mark.parametrize("background", [sphere(2), sphere(8), sphere(64), sphere(4096), Background(40.0, 55.0)])
@pytest.mark.parametrize("kind", EITHER)
def test_quantiles_between_the_points_of_a_table(
    kind: Callable[..., ScoreDistribution], background: Background, share: float
) -> None:
    assert is_quantile(kind(background), share, MANY_TEMPERATURES)


def test_beta_equals_scipys() -> None:
    thresholds = np.linspace(-0.9, 0.9, 19)[:, None]
    for background in (
        UNIFORM,
        sphere(2),
        sphere(64),
        Background(40.0, 55.0),
        Background(0.6, 1.0),
        Background(1e6, 0.5),
    ):
        found = BetaDistribution(background).mass_below(thresholds, TEMPERATURES)
        expected = stats.beta(background.a + 1 / TEMPERATURES, background.b).cdf((1 + thresholds) / 2)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_exp_on_the_circle_is_von_mises() -> None:
    """sphere(2): the angle from the query has the density e^(cos(angle) / tau_q)."""
    thresholds = np.linspace(-0.9, 0.9, 19)[:, None]
    temperatures = np.array([0.05, 0.5, 10.0])
    expected = 2 * stats.vonmises(1 / temperatures).cdf(-np.arccos(thresholds))
    assert ExpDistribution(sphere(2)).mass_below(thresholds, temperatures) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("width", [3, 8, 128])
@pytest.mark.parametrize("kappa", [0.5, 10.0, 200.0])
def test_exp_on_a_sphere_has_the_mean_of_von_mises_fisher(width: int, kappa: float) -> None:
    """The mean cosine is I_(n/2)(kappa) / I_(n/2 - 1)(kappa), a ratio of Bessel functions."""
    middles = (np.arange(10_000) + 0.5) / 5_000 - 1
    mean = 1 - 2 * ExpDistribution(sphere(width)).mass_below(middles, 1 / kappa).mean()
    assert mean == pytest.approx(special.ive(width / 2, kappa) / special.ive(width / 2 - 1, kappa), abs=1e-6)


@pytest.mark.parametrize("background", [UNIFORM, sphere(8), Background(4.0, 5.5)])
def test_the_density_is_the_background_times_the_ratio_that_the_loss_learns(background: Background) -> None:
    scores, tau_q, step = np.linspace(-0.8, 0.9, 50), 0.3, 1e-4
    z = (1 + scores) / 2
    of_background = z ** (background.a - 1) * (1 - z) ** (background.b - 1)
    ratios = {BetaDistribution: z ** (1 / tau_q), ExpDistribution: np.exp(scores / tau_q)}
    for kind, ratio in ratios.items():
        distribution = kind(background)
        density = distribution.mass_below(scores + step, tau_q) - distribution.mass_below(scores - step, tau_q)
        learned = density / of_background / ratio
        assert learned == pytest.approx(np.full(50, learned[-1]), rel=1e-5)


# 2. What the paper prints


def test_the_printed_alpha_is_off_by_one() -> None:
    """pEBR, Equation 2: at tau_q = .07 and mass .985 it cuts at .4906, not at .5195."""
    assert oracles.cutoffs.printed_beta_threshold(0.985, 0.07) == pytest.approx(0.4906, abs=5e-5)
    right = float(BetaDistribution().quantile(1 - 0.985, 0.07))
    assert right == pytest.approx(0.5195, abs=5e-5)
    # Its error is that of a background Beta(0, 1), which is none: 1/tau_q counts one success too few.
    assert oracles.cutoffs.printed_beta_threshold(0.985, 1 / (1 + 1 / 0.07)) == pytest.approx(right)


def test_the_printed_cdf_overflows_float32_at_low_temperatures() -> None:
    exp = ExpDistribution()
    assert oracles.cutoffs.printed_exp_mass_below(0.9, 0.0113) == pytest.approx(
        float(exp.mass_below(0.9, 0.0113)), rel=1e-4
    )
    assert oracles.cutoffs.printed_exp_mass_below(0.9, 0.0112) == 0
    assert float(exp.mass_below(0.9, 0.0112)) == pytest.approx(np.exp(-0.1 / 0.0112))
    assert float(exp.quantile(1e-4, 1e-3)) == pytest.approx(1 + 1e-3 * np.log(1e-4))


# 3. Properties


@tried(50)
@given(distributions, st.floats(-0.999, 0.999), st.floats(-4.0, 1.0))
def test_the_quantile_of_the_mass_below_is_the_score(
    distribution: ScoreDistribution, score: float, log10: float
) -> None:
    share = float(distribution.mass_below(score, 10**log10))
    assume(1e-300 < share < 1 - 1e-7)
    assert float(distribution.quantile(share, 10**log10)) == pytest.approx(score, abs=1e-6)


@tried(25)
@given(distributions)
def test_more_mass_below_is_a_higher_threshold_and_a_higher_temperature_a_lower_one(
    distribution: ScoreDistribution,
) -> None:
    scores = np.array([distribution.quantile(share, TEMPERATURES) for share in (0.01, 0.3, 0.9)])
    assert (np.diff(scores, axis=0) > 0).all()
    assert (np.diff(scores, axis=1) < 0).all()
    masses = distribution.mass_below(np.linspace(-1, 1, 101)[:, None], TEMPERATURES)
    assert (np.diff(masses, axis=0) > -1e-12).all()
    assert (masses >= 0).all()
    assert (masses <= 1).all()


def test_the_sphere_of_three_dimensions_is_uniform() -> None:
    assert sphere(3) == UNIFORM


@pytest.mark.parametrize("kind", EITHER)
def test_closed_forms_equal_the_integral_beside_them(kind: Callable[..., ScoreDistribution]) -> None:
    for share in (1e-12, 0.015, 0.9):
        integrated = kind(Background(1 + 1e-9, 1 + 1e-9)).quantile(share, TEMPERATURES)
        assert integrated == pytest.approx(kind(UNIFORM).quantile(share, TEMPERATURES), abs=1e-6)


@pytest.mark.parametrize("kind", EITHER)
def test_a_threshold_does_not_depend_on_the_other_queries(kind: Callable[..., ScoreDistribution]) -> None:
    temperatures = np.append(TEMPERATURES, [1e-5, 3e-4, 20.0])
    together = kind(sphere(64)).quantile(0.015, temperatures)
    alone = [kind(sphere(64)).quantile(0.015, temperatures[query : query + 1])[0] for query in range(8)]
    assert together == pytest.approx(alone, abs=1e-14)


@pytest.mark.parametrize("kind", EITHER)
def test_a_fitted_background_is_met_on_random_vectors(kind: Callable[..., ScoreDistribution]) -> None:
    """Of random cosines, weighted by the ratio that the loss learns, the share lies below the quantile."""
    vectors = np.random.default_rng(0).standard_normal((200_000, 16))
    scores = vectors[:, 0] / np.linalg.norm(vectors, axis=1)
    tau_q = 0.2
    ratio = ((1 + scores) / 2) ** (1 / tau_q) if kind is BetaDistribution else np.exp(scores / tau_q)
    is_below = scores < float(kind(fitted(scores)).quantile(0.25, tau_q))
    assert ratio[is_below].sum() / ratio.sum() == pytest.approx(0.25, abs=0.005)


def test_a_fit_recovers_its_background() -> None:
    rng = np.random.default_rng(0)
    found = fitted(2 * rng.beta(40, 55, 100_000) - 1)
    assert (found.a, found.b) == pytest.approx((40, 55), rel=0.02)
    # +-1/sqrt(n) has the mean and the variance of cosines on the sphere.
    on_sphere = fitted(np.array([1, -1]) / np.sqrt(64))
    assert (on_sphere.a, on_sphere.b) == pytest.approx((63 / 2, 63 / 2))
    assert fitted(np.append(2 * rng.beta(40, 55, 100_000) - 1, 1.0).astype(np.float32)).a == pytest.approx(40, rel=0.02)


# 4. Edges


@pytest.mark.parametrize("background", [UNIFORM, sphere(64)])
@pytest.mark.parametrize("kind", EITHER)
def test_shapes_and_ends(kind: Callable[..., ScoreDistribution], background: Background) -> None:
    distribution = kind(background)
    assert isinstance(distribution, ScoreDistribution)
    assert distribution.quantile(0.1, np.empty(0)).shape == (0,)
    assert distribution.quantile(0.1, np.full((2, 3), 0.07, dtype=np.float32)).shape == (2, 3)
    assert distribution.quantile(0.1, 0.07).shape == ()
    assert distribution.quantile(0.0, TEMPERATURES).tolist() == [-1] * 5
    assert distribution.quantile(1.0, TEMPERATURES).tolist() == [1] * 5
    assert distribution.mass_below(0.1, np.empty(0)).shape == (0,)
    assert distribution.mass_below(np.zeros((4, 1)), TEMPERATURES).shape == (4, 5)
    assert distribution.mass_below(0.1, 0.07).dtype == np.float64
    ends = np.array([-np.inf, -2.0, -1.0, np.nextafter(-1, 0), np.nextafter(1, 0), 1.0, 2.0, np.inf])
    masses = distribution.mass_below(ends, 0.07)
    assert masses == pytest.approx([0] * 4 + [1] * 4)
    assert masses[[0, 1, 2, 5, 6, 7]].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("background", [UNIFORM, sphere(64)])
@pytest.mark.parametrize("kind", EITHER)
def test_temperatures_outside_the_tables(kind: Callable[..., ScoreDistribution], background: Background) -> None:
    distribution = kind(background)
    assert is_quantile(distribution, 0.015, np.array([2e-5, 9e-4, 11.0, 500.0]))
    coldest_and_hottest = distribution.quantile(0.015, np.array([1e-300, 1e-12, 1e300]))
    of_background = 2 * stats.beta(background.a, background.b).ppf(0.015) - 1
    assert coldest_and_hottest == pytest.approx([1, 1, of_background], abs=1e-8)


@pytest.mark.parametrize("kind", EITHER)
def test_shares_near_the_ends(kind: Callable[..., ScoreDistribution]) -> None:
    for background in (UNIFORM, sphere(2), sphere(64)):
        scores = [kind(background).quantile(share, TEMPERATURES) for share in (5e-324, 1e-16, 1 - 1e-12, 1 - 2**-53)]
        assert (np.diff(scores, axis=0) >= 0).all()


# 5. Errors


@pytest.mark.parametrize("background", [UNIFORM, sphere(64)])
@pytest.mark.parametrize("kind", EITHER)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0, -0.5])
def test_a_temperature_that_is_none(
    kind: Callable[..., ScoreDistribution], background: Background, wrong: float
) -> None:
    temperature = np.array([0.1, 0.2, 0.3, wrong, wrong])
    message = f"tau_q must be finite and above 0, got {wrong} for query 3"
    with pytest.raises(ValueError, match=message):
        kind(background).quantile(0.1, temperature)
    with pytest.raises(ValueError, match=message):
        kind(background).mass_below(0.1, temperature)


@pytest.mark.parametrize("kind", EITHER)
@pytest.mark.parametrize("share", [-0.1, 1.5, np.nan])
def test_a_share_out_of_range(kind: Callable[..., ScoreDistribution], share: float) -> None:
    with pytest.raises(ValueError, match=rf"share must be in \[0, 1\], got {share}"):
        kind().quantile(share, TEMPERATURES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Background(0.4, 1.0), r"a of a background must be in \[0.5, 1e\+06\], got 0.4"),
        (lambda: Background(1.0, np.nan), r"b of a background must be in \[0.5, 1e\+06\], got nan"),
        (lambda: Background(np.inf, 1.0), r"a of a background must be in \[0.5, 1e\+06\], got inf"),
        (lambda: fitted(np.array([0.5, 0.5001])), r"a of a background must be in \[0.5, 1e\+06\], got 22499249"),
        (lambda: sphere(1), "width of a sphere must be at least 2, got 1"),
        (lambda: fitted(np.empty(0)), "a background needs at least 2 distinct scores, got 0"),
        (lambda: fitted(np.full(3, 0.1)), "a background needs at least 2 distinct scores, got 1"),
        (lambda: fitted(np.array([0.1, np.nan])), r"scores of a background must be in \[-1, 1\], got nan"),
        (lambda: fitted(np.array([0.1, 1.5])), r"scores of a background must be in \[-1, 1\], got 1.5"),
        (lambda: fitted(np.array([0.9, -0.9])), "a and b of at least 0.5, got a = 0.117, b = 0.117"),
    ],
)
def test_backgrounds_that_are_none(make: Callable[[], Background], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
