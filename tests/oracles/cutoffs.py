"""Where a list ends: distributions of scores, calibration."""

import math
from collections.abc import Sequence

import mpmath
import numpy as np


def nucleus(weights: Sequence[float], share: float) -> int:
    """How many of these weights, largest first, it takes to hold a share of their sum."""
    held = 0.0
    for number, weight in enumerate(weights, start=1):
        held += weight
        if held >= share * sum(weights):
            return number
    return len(weights)


def conformal_share(shares: Sequence[Sequence[float]], coverage: float) -> float:
    """The largest observed share v with (sum of the queries' missed fractions + 1) / (n + 1) <= 1 - coverage."""
    allowed = []
    for v in {share for line in shares for share in line}:
        missed = sum(sum(share < v for share in line) / len(line) for line in shares)
        if (missed + 1) / (len(shares) + 1) <= 1 - coverage + 1e-9:
            allowed.append(v)
    return max(allowed)


def segment_members(tau: Sequence[float], new: float, num_segments: int, least: int) -> list[int]:
    """The calibration queries in the segment of a new one: put it into the bag, sort, cut, pool if one is short."""
    bag = sorted([*tau, new])
    edges = []
    for s in range(1, num_segments):
        rank = round(s * len(bag) / num_segments)
        if rank > 0:
            edges.append(bag[rank - 1])

    def segment(t: float) -> int:
        return sum(edge < t for edge in edges)

    sizes = {number: sum(segment(t) == number for t in bag) for number in map(segment, bag)}
    if min(sizes.values()) < least:
        return list(range(len(tau)))
    return [row for row, t in enumerate(tau) if segment(t) == segment(new)]


def calibrated_share(
    shares: Sequence[Sequence[float]], tau: Sequence[float], new: float, num_segments: int, coverage: float
) -> float:
    """v_c for a new query of tau_q `new`."""
    needed = next(n for n in range(1, 10**6) if 1 / (n + 1) <= 1 - coverage + 1e-12)
    members = segment_members(tau, new, num_segments, needed + 1)
    return conformal_share([shares[row] for row in members], coverage)


def coverage(queries: Sequence[tuple[Sequence[float], float]]) -> float:
    """The mean over queries, given as the shares of their positives and v_c, of what is covered."""
    each = [sum(share >= v for share in line) / len(line) for line, v in queries]
    return sum(each) / len(each)


def beta_mass_below(threshold: float, tau_q: float, a: float, b: float) -> mpmath.mpf:
    """P(score < threshold) after BetaNCE over Beta(a, b); pEBR, Appendix A, with alpha = 1 + 1/tau_q."""
    with mpmath.workdps(40):
        z = (1 + mpmath.mpf(threshold)) / 2
        return mpmath.betainc(a + 1 / mpmath.mpf(tau_q), b, 0, z, regularized=True)


def exp_mass_below(threshold: float, tau_q: float, a: float, b: float) -> mpmath.mpf:
    """P(score < threshold) after ExpNCE over Beta(a, b), a and b at least 1; pEBR, Equation 3.

    Integrated in pieces that end around the mode and the threshold.
    """

    def log_density(z: float) -> float:
        return 2 * z / tau_q + (a - 1) * math.log(z) + (b - 1) * math.log(1 - z)

    mode = max(((step + 0.5) / 2000 for step in range(2000)), key=log_density)
    with mpmath.workdps(30):
        z, one = (1 + mpmath.mpf(threshold)) / 2, mpmath.mpf(1)
        ends = {mpmath.mpf(0), z, one} | {z * (1 - mpmath.mpf(10) ** -k) for k in (1, 2, 3)}
        ends |= {end for k in (1, 2, 3) for end in (mode - mpmath.mpf(10) ** -k, mode + mpmath.mpf(10) ** -k)}
        ends = sorted(end for end in ends if 0 <= end <= 1)

        def density(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(2 * (x - 1) / mpmath.mpf(tau_q)) * x ** mpmath.mpf(a - 1) * (1 - x) ** mpmath.mpf(b - 1)

        def integral(ends: Sequence[mpmath.mpf]) -> mpmath.mpf:
            highest = max(density(end) for end in ends)  # the tolerance of quad is absolute
            return highest * mpmath.quad(lambda x: density(x) / highest, ends)

        below, above = integral(ends[: ends.index(z) + 1]), integral(ends[ends.index(z) :])
        return below / (below + above)


def printed_beta_threshold(mass: float, tau_q: float) -> float:
    """The score with P(score >= t) = mass as pEBR prints it: Equation 2's alpha = 1/tau_q is one too low."""
    return 2 * (1 - mass) ** tau_q - 1


def printed_exp_mass_below(threshold: float, tau_q: float) -> float:
    """pEBR, Section 2.4.1, as printed, in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        at_threshold, at_1, at_minus_1 = np.exp(np.array([threshold, 1, -1], dtype=np.float32) / np.float32(tau_q))
        return float((at_threshold - at_minus_1) / (at_1 - at_minus_1))


def mean_log_density(queries: Sequence[tuple[Sequence[float], float]], a: float, b: float, kind: str) -> float:
    """The mean over queries, given as the scores of their relevant items and tau_q, of the mean log density of a score.

    Args:
        kind: beta or exp, whose densities are the background's Beta(a, b) times r, each with its own normaliser.
    """
    each = []
    for scores, tau_q in queries:

        def height(z: float, tau_q: float = tau_q) -> mpmath.mpf:
            ratio = mpmath.mpf(z) ** (1 / tau_q) if kind == "beta" else mpmath.exp(2 * (z - 1) / tau_q)
            return ratio * mpmath.mpf(z) ** (a - 1) * (1 - mpmath.mpf(z)) ** (b - 1)

        total = mpmath.quad(height, [0, 0.5, 0.9, 0.99, 1])
        each.append(sum(float(mpmath.log(height((1 + s) / 2) / total / 2)) for s in scores) / len(scores))
    return sum(each) / len(each)


def mean_log_probability(queries: Sequence[tuple[Sequence[float], Sequence[int]]], factor: float) -> float:
    """The mean over queries, given as logits of all items and which are relevant, of the mean log-softmax of those."""
    each = []
    for logits, relevant in queries:
        total = math.log(sum(math.exp(logit / factor) for logit in logits))
        each.append(sum(logits[row] / factor - total for row in relevant) / len(relevant))
    return sum(each) / len(each)


def softmax_above(logits: Sequence[float], row: int) -> float:
    """How much of the softmax lies strictly above an item."""
    total = sum(math.exp(logit) for logit in logits)
    return sum(math.exp(logit) for logit in logits if logit > logits[row]) / total


def f_beta(kept: Sequence[bool], num_relevant: int, beta: float) -> float:
    """F-beta of one list, given as whether each item kept is relevant: (1 + beta^2) P R / (beta^2 P + R)."""
    hits = sum(kept)
    if not hits:
        return 0.0
    precision, recall = hits / len(kept), hits / num_relevant
    return (1 + beta**2) * precision * recall / (beta**2 * precision + recall)
