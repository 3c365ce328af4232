"""The score of a relevant item as a random variable, after training with BetaNCE or ExpNCE.

Let z = (1 + score) / 2. For any item of the corpus it follows the background Beta(a, b). A loss learns the ratio
r = p(x | q) / p(x), so that z of a relevant item has the density r times the background's:

    BetaNCE   r ~ z^(1/tau_q)         z ~ Beta(a + 1/tau_q, b)
    ExpNCE    r ~ e^(score / tau_q)   density ~ e^(2 z / tau_q) z^(a-1) (1-z)^(b-1), a Kummer-Beta distribution

    share = P(score < t),   mass kept = P(score >= t) = 1 - share

Backgrounds: uniform on [-1, 1], a = b = 1; uniform on the sphere S^(n-1), a = b = (n-1)/2, where ExpNCE gives the
marginal of a von Mises-Fisher distribution with kappa = 1/tau_q; or fitted to cosines of the corpus. Shares, not
masses: a calibrated share may be far below 1e-16, where 1 - mass has no digits left.

Closed forms: b = 1 of BetaNCE, share = z^(a + 1/tau_q), and a = b = 1 of ExpNCE. All else is integrated over
y = log(z / (1-z)) = 2 artanh(score), where both densities have one mode and no singular end for any a and b.

Source: pEBR, Section 2.4 and Appendix A.
Differs from the source:
- Equation 2 prints alpha = 1/tau_q. Density z^(1/tau_q) belongs to Beta(1 + 1/tau_q, 1); the printed exponent is lower
  by one and returns too many items (tau_q .07, mass .985: .4906 printed, .5195 right).
- The CDF of Section 2.4.1 is printed with e^(1/tau_q), which overflows float32 below tau_q = .0113.
- Appendix A interpolates the CDF of each query linearly between 1,001 scores; at tau_q .001 most of it lies between
  two of them. Here the quantile is a cubic spline over log tau_q, one for each share, with points where it needs them.

Axes: B queries.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating] | float
Doubles = NDArray[np.float64]

# Largest a and b: beyond, scores differ by less than .001, too little to calibrate by or to integrate.
LARGEST_SHAPE = 1e6
# A lower tau_q is taken for this one: 1 - score is about 2 b tau_q, so that all scores are 1 to eight digits anyway.
SMALLEST_TEMPERATURE = 1e-12
# At this y the score is 1 in float64, and -1 at its negative.
LARGEST_LOGIT = 40.0
# Of a score to 1 or -1, in float32: a density there may be 0 or infinite, whatever tau_q.
CLOSEST = 1e-6
# A tail is integrated to where its density has fallen by e^-36, about float64's own precision.
DEPTH = 36.0
NUM_NODES = 48  # of Gauss-Legendre: 1e-12 of a tail at a = b = .5, whose tails are the longest
# The end of a tail need only be near: 20 halvings of a range of some 200 find it within .001.
NUM_HALVINGS = 20
# Newton's method ends at a step of this size in y; its next would be of the square. It takes 2 to 12 steps.
PRECISION = 1e-11
MAX_STEPS = 100
# 1/tau_q that tables cover; the points they begin with, the error of the score at which they add one between two, and
# how near in log tau_q two may be.
TABLE_RANGE = (0.1, 1000.0)
TABLE_SIZE = 129
TABLE_ERROR = 1e-8
SMALLEST_GAP = 1e-4
# Queries integrated at once: 48 nodes of each fit the cache of a core.
BLOCK_SIZE = 1024


@dataclass(frozen=True)
class Background:
    """Beta(a, b), the distribution of z of any item. Below 1/2 the density of the angle would be unbounded."""

    a: float
    b: float

    def __post_init__(self) -> None:
        for name, value in (("a", self.a), ("b", self.b)):
            if not 0.5 <= value <= LARGEST_SHAPE:
                raise ValueError(f"{name} of a background must be in [0.5, {LARGEST_SHAPE:g}], got {value}")


UNIFORM = Background(1.0, 1.0)


def sphere(width: int) -> Background:
    """Cosines with items spread evenly over the unit sphere of `width` dimensions; 3 is uniform on [-1, 1]."""
    if width < 2:
        raise ValueError(f"width of a sphere must be at least 2, got {width}")
    return Background((width - 1) / 2, (width - 1) / 2)


def fitted(scores: NDArray[np.floating]) -> Background:
    """The background with the mean and the variance of these scores; 0 and 1/n give `sphere(n)`.

    Moments and not likelihood: an item met by its duplicate scores exactly 1, where a likelihood is 0 or infinite.

    Raises:
        ValueError: unless there are 2 distinct scores in [-1, 1], not massed at the ends.
    """
    scores = np.asarray(scores, dtype=np.float64)
    outside = ~((scores >= -1) & (scores <= 1))
    if outside.any():
        raise ValueError(f"scores of a background must be in [-1, 1], got {scores[outside][0]}")
    if not scores.size or scores.min() == scores.max():
        raise ValueError(f"a background needs at least 2 distinct scores, got {min(scores.size, 1)}")
    mean, variance = (1 + scores.mean()) / 2, scores.var() / 4
    total = mean * (1 - mean) / variance - 1
    a, b = float(mean * total), float((1 - mean) * total)
    if min(a, b) < 0.5:
        raise ValueError(
            "scores must not crowd at -1 and 1, so that a beta distribution fits with a and b of at least 0.5, got a "
            f"= {a:.3g}, b = {b:.3g}: take another background"
        )
    return Background(a, b)


@runtime_checkable
class ScoreDistribution(Protocol):
    """The score of a relevant item, given tau_q of its query."""

    def mass_below(self, threshold: Floats, temperature: Floats) -> Doubles:
        """P(score < threshold), of arguments that broadcast; exact to some digits however small it is."""

    def quantile(self, share: float, temperature: Floats) -> Doubles:
        """The score t in [-1, 1] with P(score < t) = share, for tau_q [B]."""

    def log_density(self, score: Floats, temperature: Floats) -> Doubles:
        """log p(score), of arguments that broadcast, where a score is kept away from -1 and 1 by CLOSEST."""


@dataclass(frozen=True)
class _Power:
    """share = z^alpha, alpha [B]."""

    alpha: Doubles

    def log_density(self, score: Doubles) -> Doubles:
        return np.asarray(np.log(self.alpha / 2) + (self.alpha - 1) * np.log((1 + score) / 2))

    def mass_below(self, threshold: Doubles) -> Doubles:
        return np.asarray(np.exp(-self.alpha * np.log1p((1 - threshold) / (1 + threshold))))

    def quantile(self, share: float) -> Doubles:
        return np.asarray(1 + 2 * np.expm1(np.log(share) / self.alpha))


@dataclass(frozen=True)
class _TruncatedExponential:
    """share = (e^(rate z) - 1) / (e^rate - 1), rate [B], with nothing raised to more than 0."""

    rate: Doubles

    def log_density(self, score: Doubles) -> Doubles:
        return np.asarray(np.log(self.rate / 2) - self.rate * (1 - score) / 2 - np.log(-np.expm1(-self.rate)))

    def mass_below(self, threshold: Doubles) -> Doubles:
        below_the_end = np.exp(self.rate * (threshold - 1) / 2)
        return np.asarray(below_the_end * np.expm1(-self.rate * (1 + threshold) / 2) / np.expm1(-self.rate))

    def quantile(self, share: float) -> Doubles:
        log_expm1 = self.rate + np.log(-np.expm1(-self.rate))
        z = np.logaddexp(0, np.log(share) + log_expm1) / self.rate
        return np.asarray(np.clip(2 * z - 1, -1, 1))


class _KummerBeta:
    """Density ~ e^(rate z) z^(a-1) (1-z)^(b-1), integrated over y = log(z / (1-z)) with a, b and rate [B]."""

    def __init__(self, a: Doubles, b: Doubles, rate: Doubles) -> None:
        self.a, self.b, self.rate = a, b, rate
        # The derivative is 0 where rate w^2 - (rate + a + b) w + b = 0, w = 1 - z; here is its root in (0, 1).
        w = 2 * b / (rate + a + b + np.hypot(rate + a - b, 2 * np.sqrt(a * b)))
        self.mode = np.log1p(-w) - np.log(w)
        self.log_below_mode = self.log_tail(self.mode, np.full_like(self.mode, -1))
        self.log_total = np.logaddexp(self.log_below_mode, self.log_tail(self.mode, np.ones_like(self.mode)))

    def log_height(self, y: Doubles) -> Doubles:
        """log of e^(-rate (1-z)) z^a (1-z)^b, with y [B] or [any, B]."""
        odds = np.exp(-y)  # (1-z) / z
        log_z = -np.log1p(odds)
        return np.asarray(-self.rate * odds / (1 + odds) + self.a * log_z + self.b * (log_z - y))

    def log_tail(self, y: Doubles, side: Doubles) -> Doubles:
        """log of the integral from y away from the mode, to the left where side is -1 and to the right where 1."""
        top = self.log_height(y)
        near, far = y, side * (np.maximum(side * y, LARGEST_LOGIT) + 2 * DEPTH / np.where(side < 0, self.a, self.b))
        for _ in range(NUM_HALVINGS):
            middle = (near + far) / 2
            is_beyond = self.log_height(middle) < top - DEPTH
            near, far = np.where(is_beyond, near, middle), np.where(is_beyond, middle, far)
        half, (nodes, weights) = (far - y) / 2, _gauss_legendre()
        heights = np.exp(self.log_height(y + half + nodes[:, None] * half) - top)  # [nodes, B]
        return np.asarray(top + np.log((weights[:, None] * heights).sum(axis=0) * np.abs(half)))

    def log_density(self, score: Doubles) -> Doubles:
        y = 2 * np.arctanh(score)  # dy = 2 dscore / (1 - score^2)
        return np.asarray(self.log_height(y) - self.log_total + np.log(2) - np.log1p(-(score**2)))

    def mass_below(self, threshold: Doubles) -> Doubles:
        y = 2 * np.arctanh(threshold)
        side = np.where(y > self.mode, 1.0, -1.0)
        tail = np.exp(self.log_tail(y, side) - self.log_total)
        return np.where(side > 0, 1 - tail, tail)

    def quantile(self, share: float) -> Doubles:
        """Newton's method on the normal quantile of the tail, which is nearly straight in y, or else halving."""
        from scipy.special import ndtri_exp  # which servers without such cut-offs need not load

        side = np.where(np.log(share) > self.log_below_mode - self.log_total, 1.0, -1.0)
        wanted = ndtri_exp(np.where(side > 0, np.log1p(-share), np.log(share)))
        y, near, far = self.mode, self.mode, side * (LARGEST_LOGIT + 1)
        moved = np.full_like(y, np.inf)
        for _ in range(MAX_STEPS):
            found = ndtri_exp(self.log_tail(y, side) - self.log_total)
            near, far = np.where(found < wanted, near, y), np.where(found < wanted, y, far)
            log_slope = self.log_height(y) - self.log_total + (found**2 + np.log(2 * np.pi)) / 2
            new = np.clip(y + side * (found - wanted) * np.exp(-log_slope), -LARGEST_LOGIT, LARGEST_LOGIT)
            is_wild = ((new - near) * (new - far) >= 0) | (np.abs(new - y) > moved / 2)
            new = np.where(is_wild & (np.abs(new - y) > PRECISION), (near + far) / 2, new)
            # What is found stays: a query's answer does not depend on the others of its block.
            new = np.where(moved > PRECISION, new, y)
            moved, y = np.abs(new - y), new
            if not (moved > PRECISION).any():
                break
        return np.asarray(np.tanh(y / 2))


@dataclass(frozen=True)
class _TiltedBackground(ABC):
    """A background times the ratio that a loss learns."""

    background: Background = UNIFORM

    @property
    @abstractmethod
    def has_closed_form(self) -> bool:
        """Return whether `given` needs no integration."""

    @abstractmethod
    def given(self, inverse: Doubles) -> _Power | _TruncatedExponential | _KummerBeta:
        """The distribution for 1/tau_q [B]."""

    def mass_below(self, threshold: Floats, temperature: Floats) -> Doubles:
        thresholds, inverses = np.broadcast_arrays(np.asarray(threshold, dtype=np.float64), _inverse(temperature))
        inside = np.clip(thresholds, np.nextafter(-1, 0), np.nextafter(1, 0))
        mass = _in_blocks(lambda t, inverse: self.given(inverse).mass_below(t), inside.ravel(), inverses.ravel())
        return np.where(thresholds <= -1, 0.0, np.where(thresholds >= 1, 1.0, mass.reshape(thresholds.shape)))

    def log_density(self, score: Floats, temperature: Floats) -> Doubles:
        scores, inverses = np.broadcast_arrays(np.asarray(score, dtype=np.float64), _inverse(temperature))
        inside = np.clip(scores, CLOSEST - 1, 1 - CLOSEST)
        found = _in_blocks(lambda s, inverse: self.given(inverse).log_density(s), inside.ravel(), inverses.ravel())
        return found.reshape(scores.shape)

    def quantile(self, share: float, temperature: Floats) -> Doubles:
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share}")
        inverses = _inverse(temperature)
        if share in (0, 1):
            return np.full(inverses.shape, 2.0 * share - 1)
        flat = inverses.ravel()
        # One query or many, the table answers: a threshold does not depend on the batch that its query is in.
        is_in_table = (flat >= TABLE_RANGE[0]) & (flat <= TABLE_RANGE[1]) & (not self.has_closed_form)
        scores = np.empty_like(flat)
        if is_in_table.any():
            scores[is_in_table] = np.clip(_table(self, share)(np.log(flat[is_in_table])), -1, 1)
        scores[~is_in_table] = _in_blocks(lambda inverse: self.given(inverse).quantile(share), flat[~is_in_table])
        return scores.reshape(inverses.shape)


class BetaDistribution(_TiltedBackground):
    """After BetaNCE."""

    @property
    def has_closed_form(self) -> bool:
        return self.background.b == 1

    def given(self, inverse: Doubles) -> _Power | _KummerBeta:
        alpha = self.background.a + inverse
        if self.has_closed_form:
            return _Power(alpha)
        return _KummerBeta(alpha, np.full_like(inverse, self.background.b), np.zeros_like(inverse))


class ExpDistribution(_TiltedBackground):
    """After ExpNCE."""

    @property
    def has_closed_form(self) -> bool:
        return self.background == UNIFORM

    def given(self, inverse: Doubles) -> _TruncatedExponential | _KummerBeta:
        if self.has_closed_form:
            return _TruncatedExponential(2 * inverse)
        a, b = (np.full_like(inverse, value) for value in (self.background.a, self.background.b))
        return _KummerBeta(a, b, 2 * inverse)


def check_temperature(temperature: Floats) -> None:
    """Raises:
    ValueError: if a tau_q is not finite or not above 0.
    """
    temperature = np.asarray(temperature)
    is_wrong = ~(np.isfinite(temperature) & (temperature > 0))
    if is_wrong.any():
        query = int(np.flatnonzero(is_wrong)[0])
        raise ValueError(f"tau_q must be finite and above 0, got {temperature.flat[query]} for query {query}")


def _inverse(temperature: Floats) -> Doubles:
    """1/tau_q."""
    check_temperature(temperature)
    temperature = np.asarray(temperature, dtype=np.float64)
    return np.asarray(1 / np.maximum(temperature, SMALLEST_TEMPERATURE))


def _in_blocks(function: Callable[..., Doubles], *columns: Doubles) -> Doubles:
    """`function` of columns [B], a block of queries at a time."""
    found = np.empty(len(columns[0]))
    for first in range(0, len(found), BLOCK_SIZE):
        block = slice(first, first + BLOCK_SIZE)
        found[block] = function(*(column[block] for column in columns))
    return found


@lru_cache(maxsize=64)
def _table(of: _TiltedBackground, share: float) -> Callable[[Doubles], Doubles]:
    """The quantile over log 1/tau_q, with points added as long as the spline between two of them is off."""
    from scipy.interpolate import CubicSpline  # half a second, for which processes without tables need not wait

    x = np.linspace(np.log(TABLE_RANGE[0]), np.log(TABLE_RANGE[1]), TABLE_SIZE)
    scores = of.given(np.exp(x)).quantile(share)
    left, right = x[:-1], x[1:]
    while left.size:
        middle = (left + right) / 2
        exact = of.given(np.exp(middle)).quantile(share)
        is_off = (np.abs(CubicSpline(x, scores)(middle) - exact) > TABLE_ERROR) & (right - left > SMALLEST_GAP)
        order = np.argsort(np.append(x, middle))
        x, scores = np.append(x, middle)[order], np.append(scores, exact)[order]
        left, right = np.append(left[is_off], middle[is_off]), np.append(middle[is_off], right[is_off])
    spline: Callable[[Doubles], Doubles] = CubicSpline(x, scores)
    return spline


@cache
def _gauss_legendre() -> tuple[Doubles, Doubles]:
    """Nodes and weights of Gauss-Legendre on [-1, 1], when they are needed: most servers need no polynomials."""
    nodes, weights = np.polynomial.legendre.leggauss(NUM_NODES)
    return nodes, weights
