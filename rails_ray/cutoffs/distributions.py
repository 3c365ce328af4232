"""The score of a relevant item as a random variable, after training with BetaNCE.

BetaNCE learns the ratio r = p(x | q) / p(x) = z^(1/tau_q) with z = (1 + score) / 2. Under a background p(x) that is
uniform on [-1, 1], z of a relevant item follows Beta(alpha, 1):

    alpha = 1 + 1/tau_q
    P(score < t) = ((1 + t) / 2)^alpha
    P(score >= t) = c   <=>   t = 2 (1 - c)^(1/alpha) - 1

Source: pEBR, Section 2.4.2, with the closed form of beta = 1.
Differs from the source: Equation 2 prints alpha = 1/tau_q. Density z^(1/tau_q) is that of Beta(1 + 1/tau_q, 1); the
printed exponent is lower by one and returns too many items (tau .07, mass .985: .4906 printed, .5195 right).
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def beta_alpha(temperature: Floats) -> NDArray[np.float64]:
    """alpha of each query from its tau_q > 0."""
    return 1 + 1 / np.asarray(temperature, dtype=np.float64)


def beta_mass_above(threshold: Floats, temperature: Floats) -> NDArray[np.float64]:
    """P(score >= threshold) of a relevant item, for thresholds in [-1, 1]."""
    z = (1 + np.asarray(threshold, dtype=np.float64)) / 2
    # expm1 and log keep the mass exact where almost all of it lies above.
    with np.errstate(divide="ignore"):
        return -np.expm1(beta_alpha(temperature) * np.log(z))


def beta_threshold(mass: float, temperature: Floats) -> NDArray[np.float64]:
    """The score that a relevant item reaches with probability `mass`, in [-1, 1]; a larger mass keeps more.

    Raises:
        ValueError: unless mass is in [0, 1].
    """
    if not 0 <= mass <= 1:
        raise ValueError(f"mass must be in [0, 1], got {mass}")
    with np.errstate(divide="ignore"):
        z: NDArray[np.float64] = np.exp(np.log1p(-mass) / beta_alpha(temperature))
    return 2 * z - 1
