"""Temperatures fitted on held-out queries: a factor on tau_q, so that a share of a distribution is a share of hits.

    mass      f = argmax mean_q 1/n_q sum_j log p(s_qj | f tau_q)
    softmax   f = argmax mean_q 1/n_q sum_j [ logit_qj / f - log sum_x exp(logit_qx / f) ]

over the n_q relevant items j of each held-out query q and all items x that it can find. Both are concave in 1/f: p and
the softmax are exponential families whose natural parameter is 1/(f tau_q). The factors of the two differ up to twelve
times on held-out queries of WordNet, and those of two backgrounds up to thirty times, so each is fitted on its own.

A factor moves the scores of relevant items and cannot change how far they spread, which a background of other items'
scores decides. The background `held_out` is fitted to the relevant items themselves, by the same likelihood, with f:

    (a, b, f) = argmax mean_q 1/n_q sum_j log p_(a, b)(s_qj | f tau_q)      concave in a, b and 1/f

The 95% interval of log f is 1.96 sqrt(sum_q l'_q^2) / |sum_q l''_q| around the maximum, with the derivatives of each
query's term by log f: it holds whether or not p is right.

Source: temperature scaling, "On Calibration of Modern Neural Networks"; pEBR has no factor, and no such background.

Axes: Q queries, M pairs of a query and a relevant item, F factors, B queries, X items.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.cutoffs.distributions import Background, Floats, ScoreDistribution
from rails_ray.modules.losses import ScoreLogit

# Half octaves: the spline between them finds the maximum to a thousandth of f, a tenth of its usual interval.
FACTORS = 2.0 ** np.arange(-4, 8.25, 0.5)
HELD_OUT = "held_out"  # the background of relevant items' own scores
NORMAL_975 = 1.96
HIGHEST_LOGS = np.log([1e4, 1e4, FACTORS[-1]])  # of a, b and f: at 1e4 all scores lie within .01


@dataclass(frozen=True)
class Factor:
    """
    value: f, by which tau_q is multiplied.
    low, high: its 95% interval over draws of the queries.
    num_queries: held-out queries that it was fitted on.
    """

    value: float
    low: float
    high: float
    num_queries: int


@dataclass(frozen=True)
class Factors:
    """The factors of a version's calibration; where there is none, tau_q stays as trained.

    mass: factor of the score's distribution, by name of its background.
    softmax: factor of the softmax over the corpus.
    """

    mass: Mapping[str, Factor] = field(default_factory=dict)
    softmax: Factor | None = None

    @property
    def background(self) -> str:
        """The background of a mass that names none."""
        return HELD_OUT if HELD_OUT in self.mass else "uniform"

    def tempered_logit(self, logit: ScoreLogit) -> ScoreLogit:
        """The training logit at the fitted temperature."""
        return logit if self.softmax is None else tempered(logit, self.softmax.value)

    def tempered_distribution(self, distribution: ScoreDistribution, background: str) -> ScoreDistribution:
        """The distribution of a relevant item's score, over a background, at the fitted temperature."""
        own = self.mass.get(background)
        return distribution if own is None else Tempered(distribution, own.value)


AS_TRAINED = Factors()


@dataclass(frozen=True)
class Tempered:
    """The distribution of a relevant item's score at `factor` times tau_q."""

    distribution: ScoreDistribution
    factor: float

    def mass_below(self, threshold: Floats, temperature: Floats) -> NDArray[np.float64]:
        return self.distribution.mass_below(threshold, self._times(temperature))

    def quantile(self, share: float, temperature: Floats) -> NDArray[np.float64]:
        return self.distribution.quantile(share, self._times(temperature))

    def log_density(self, score: Floats, temperature: Floats) -> NDArray[np.float64]:
        return self.distribution.log_density(score, self._times(temperature))

    def _times(self, temperature: Floats) -> NDArray[np.float64]:
        return self.factor * np.asarray(temperature, dtype=np.float64)


def tempered(logit: ScoreLogit, factor: float) -> ScoreLogit:
    """The logit over `factor`: that of `factor` times tau_q, or of a tau that all queries share."""

    def divided(scores: Float[Tensor, "B X"], temperature: Float[Tensor, " B"]) -> Float[Tensor, "B X"]:
        return logit(scores, temperature) / factor

    return divided


def log_likelihoods(
    query: NDArray[np.int64],
    score: NDArray[np.floating],
    temperature: NDArray[np.floating],
    distribution: ScoreDistribution,
) -> NDArray[np.float64]:
    """The mean log density of a query's relevant items at each of FACTORS [Q, F]; queries without one are left out.

    Args:
        query, score: of each relevant item [M].
        temperature: tau_q of all queries that `query` numbers.
    """
    scores, tau_q = np.asarray(score, dtype=np.float64), np.asarray(temperature, dtype=np.float64)[query]
    found = [means(query, Tempered(distribution, factor).log_density(scores, tau_q)) for factor in FACTORS.tolist()]
    return np.stack(found, axis=1)


def held_out_background(
    query: NDArray[np.int64],
    score: NDArray[np.floating],
    temperature: NDArray[np.floating],
    distribution_of: Callable[[Background], ScoreDistribution],
) -> Background:
    """The background under which the relevant items of held-out queries are likeliest, at the best factor for it.

    Args:
        query, score, temperature: as in `log_likelihoods`.
        distribution_of: gives the distribution of a relevant item's score, from a background.

    Raises:
        ValueError: if the scores are fewer than 3 different ones, which any background with a high peak would fit.
    """
    from scipy.optimize import minimize  # half a second, for which processes that only cut need not wait

    scores, tau_q = np.asarray(score, dtype=np.float64), np.asarray(temperature, dtype=np.float64)[query]
    if len(np.unique(scores)) < 3:
        raise ValueError(f"a background of relevant items needs at least 3 distinct scores, got {len(set(scores))}")
    weight = 1 / np.bincount(query)[query]

    def loss(logs: NDArray[np.float64]) -> float:
        a, b, factor = np.exp(np.minimum(logs, HIGHEST_LOGS)).tolist()
        log_density = distribution_of(Background(a, b)).log_density(scores, factor * tau_q)
        return -float((weight * log_density).sum() / weight.sum())

    bounds = list(zip(np.log([0.5, 0.5, FACTORS[0]]), HIGHEST_LOGS, strict=True))
    found = minimize(loss, np.log([1.0, 8.0, 1.0]), method="L-BFGS-B", bounds=bounds)
    a, b, _ = np.exp(np.clip(found.x, *np.transpose(bounds))).tolist()
    return Background(max(a, 0.5), max(b, 0.5))


def means(query: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the values [M] of each query that has any [Q]."""
    _, number, counts = np.unique(query, return_inverse=True, return_counts=True)
    return np.bincount(number, values, minlength=len(counts)).astype(np.float64) / counts


def fit(log_likelihood: NDArray[np.float64]) -> Factor:
    """The factor with the highest mean of log-likelihoods [Q, F] at FACTORS.

    Raises:
        ValueError: if there is no query, or if the mean has no maximum between the first and the last factor.
    """
    from scipy.interpolate import CubicSpline  # half a second, for which processes that only cut need not wait

    num_queries = len(log_likelihood)
    if not num_queries:
        raise ValueError("fitting a temperature needs at least 1 held-out query with a relevant item, got none")
    x = np.log(FACTORS)
    best = int(log_likelihood.mean(axis=0).argmax())
    if best in (0, len(x) - 1):
        raise ValueError(
            f"the factor on tau_q that fits the held-out queries must be above {FACTORS[0]:g} and below "
            f"{FACTORS[-1]:g}, got {FACTORS[best]:g} or beyond: train the model for longer"
        )
    mean = CubicSpline(x, log_likelihood.mean(axis=0))
    ends = mean.derivative().roots(extrapolate=False)
    place = float(ends[np.argmax(mean(ends))])
    of_queries = CubicSpline(x, log_likelihood, axis=1)
    slopes, curvature = of_queries(place, 1), float(mean(place, 2))
    half = NORMAL_975 * np.sqrt((slopes**2).mean() / num_queries) / abs(curvature)
    value, low, high = (float(np.exp(at)) for at in (place, place - half, place + half))
    return Factor(value, low, high, num_queries)
