import numpy as np
import pytest
from scipy import stats

from rails_ray.cutoffs.distributions import beta_alpha, beta_mass_above, beta_threshold

TEMPERATURES = np.array([1e-3, 0.01, 0.07, 0.5, 10.0])


@pytest.mark.parametrize("mass", [1e-4, 0.5, 0.9, 0.985, 1 - 1e-4, 1 - 1e-12])
def test_threshold_equals_the_inverse_cdf_of_scipy(mass: float) -> None:
    """z of a relevant item follows Beta(1 + 1/tau_q, 1)."""
    z = stats.beta(1 + 1 / TEMPERATURES, 1).isf(mass)
    assert beta_threshold(mass, TEMPERATURES) == pytest.approx(2 * z - 1, abs=1e-9)


def test_mass_above_the_threshold_is_the_mass() -> None:
    for mass in (0.01, 0.5, 0.999):
        assert beta_mass_above(beta_threshold(mass, TEMPERATURES), TEMPERATURES) == pytest.approx(mass)


def test_the_density_is_the_ratio_that_beta_nce_learns() -> None:
    """p(x | q) / p(x) = z^(1/tau_q) up to a constant, over a uniform background."""
    scores = np.linspace(0.3, 0.99, 50)
    for tau_q in (0.05, 0.3):
        step = 1e-6
        mass = beta_mass_above(scores, np.array([tau_q])) - beta_mass_above(scores + step, np.array([tau_q]))
        ratio = mass / ((1 + scores) / 2) ** (1 / tau_q)
        assert ratio == pytest.approx(np.full(50, ratio[-1]), rel=1e-3)


def test_the_printed_alpha_is_off_by_one() -> None:
    """pEBR, Equation 2, prints alpha = 1/tau_q: at tau_q = .07 and mass .985 that cuts at .4906, not at .5195."""
    tau_q = np.array([0.07])
    assert beta_alpha(tau_q) - 1 / tau_q == pytest.approx(1)
    assert beta_threshold(0.985, tau_q)[0] == pytest.approx(0.5195, abs=5e-5)
    assert pytest.approx(0.4906, abs=5e-5) == 2 * (1 - 0.985) ** 0.07 - 1


def test_a_larger_mass_keeps_more_and_the_ends_keep_nothing_and_all() -> None:
    thresholds = [beta_threshold(mass, TEMPERATURES) for mass in (0.0, 0.1, 0.9, 1.0)]
    assert (np.diff(thresholds, axis=0) < 0).all()
    assert thresholds[0] == pytest.approx(1)
    assert thresholds[-1] == pytest.approx(-1)


def test_a_higher_temperature_lowers_the_threshold() -> None:
    assert (np.diff(beta_threshold(0.9, TEMPERATURES)) < 0).all()


def test_mass_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"mass must be in \[0, 1\], got 1.5"):
        beta_threshold(1.5, TEMPERATURES)
