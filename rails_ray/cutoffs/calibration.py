"""Calibration on held-out queries: which scores keep a given share of the relevant items, and which mass is best.

The normaliser of the softmax cancels in BetaNCE and ExpNCE, so training leaves the level of the distribution open: only
measuring tells how much of the relevant a threshold keeps. Held-out positive j of query q has the share

    p_qj = P(score < s_qj)            under the distribution that tau_q gives, so that queries can be compared

and a threshold v on p misses the share miss_q(v) = |{j: p_qj < v}| / |{j}| of a query's positives. Coverage c takes

    v_c = the largest p with (sum_q miss_q(p) + 1) / (m + 1) <= 1 - c

over the m calibration queries of the new query's segment of tau_q, and cuts the new query at the score whose share is
v_c. A model without a trained tau_q has one and the same tau_q for all queries, and so one score for all.

The promise: a new query, exchangeable with the n calibration queries, has an expected coverage of at least c, whatever
their scores, ties and duplicates, for every n >= c / (1 - c). It holds because the segments are cut from all n + 1
queries, the new one included, without asking which one is new (`segments`). Each query of the new one's segment is
therefore equally likely to be the new one, and split conformal prediction holds within the segment. Where a segment
would hold too few queries for c, all n + 1 make one. Without ties the coverage is above c by at most about 1 / m.

Source: split conformal prediction, weighted by query (conformal risk control); pEBR has no calibration.

Axes: Q calibration queries, M pairs of a query and a relevant item, B queries.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from rails_ray.cutoffs.distributions import ScoreDistribution, check_temperature
from rails_ray.cutoffs.segments import Segments

# Masses 1 - 10^-x, even in x from .5 to 1 - 1e-12: the share left out is what spaces thresholds evenly. Below .5, as a
# fitted tau_q may need where few relevant items stand out, the masses themselves are even.
CANDIDATE_MASSES = np.concatenate([np.arange(1, 10) / 20, 1 - 10 ** -np.linspace(np.log10(2), 12, 60)])
NUM_SEGMENTS = 3  # of tau_q
ROUNDING = 1e-7  # of a score, in quantiles and in float32: a positive at v_c is kept
HIGHEST_SHARE = 1 - 1e-12  # of a positive: the score with this share then does not lie above the positive's


@dataclass(frozen=True)
class Positives:
    """Relevant items of queries, by their shares.

    query: number of the query, in 0 .. Q - 1 [M].
    share: P(score of a relevant item < this item's score) [M].
    temperature: tau_q of each query [Q]; all of them have a relevant item.
    """

    query: NDArray[np.int64]
    share: NDArray[np.float64]
    temperature: NDArray[np.float64]

    @staticmethod
    def of(
        query: NDArray[np.int64],
        score: NDArray[np.floating],
        temperature: NDArray[np.floating],
        distribution: ScoreDistribution,
    ) -> "Positives":
        """From the scores of relevant items [M]; queries without one are left out.

        Args:
            temperature: tau_q of all queries that `query` numbers.
        """
        queries, number = np.unique(query, return_inverse=True)
        share = distribution.mass_below(np.asarray(score, dtype=np.float64), temperature[query])
        return Positives(number, np.minimum(share, HIGHEST_SHARE), np.asarray(temperature[queries], dtype=np.float64))

    @property
    def num_queries(self) -> int:
        return len(self.temperature)

    @property
    def weight(self) -> NDArray[np.float64]:
        """The weight of each pair [M]: all pairs of a query together have the weight 1."""
        counts = np.bincount(self.query, minlength=self.num_queries)
        weight: NDArray[np.float64] = 1 / counts[self.query]
        return weight

    def take(self, is_kept: NDArray[np.bool_]) -> "Positives":
        """The positives of some queries, given by a mask [Q]."""
        pairs = is_kept[self.query]
        number = np.cumsum(is_kept) - 1
        return Positives(number[self.query[pairs]], self.share[pairs], self.temperature[is_kept])


@dataclass(frozen=True, eq=False)
class Calibration:
    """Held-out positives, and the distribution that gave their shares.

    num_segments: groups of equally many queries by tau_q, each calibrated on its own.
    """

    positives: Positives
    distribution: ScoreDistribution
    num_segments: int = NUM_SEGMENTS

    @cached_property
    def segments(self) -> Segments:
        return Segments(self.positives.temperature, self.num_segments)

    def check(self, coverage: float) -> None:
        """Raises:
        ValueError: if the queries are too few for such a coverage.
        """
        _check_num_queries(self.positives.num_queries, coverage)

    def members(self, coverage: float) -> list[tuple[int, int]]:
        """The calibration queries that v_c rests on, for a query at each place of `segments`: start and stop of their
        order by tau_q."""
        return [(start, stop) for start, stop in self.segments.members(num_needed(coverage) + 1).tolist()]

    def take(self, members: tuple[int, int]) -> Positives:
        """The positives of these calibration queries."""
        is_member = np.zeros(self.positives.num_queries, dtype=bool)
        is_member[self.segments.order[slice(*members)]] = True
        return self.positives.take(is_member)

    def shares(self, coverage: float, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        """v_c for new queries of tau_q [B].

        Raises:
            ValueError: as `check`, or if a tau_q is not finite or not above 0.
        """
        check_temperature(temperature)
        return _shares(self, coverage)[self.segments.place(temperature)]

    def threshold(self, coverage: float, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        """The lowest score [B] that is kept for queries of tau_q [B].

        Raises:
            ValueError: as `shares`.
        """
        share = self.shares(coverage, temperature)
        found = np.empty(len(temperature))
        for value in np.unique(_shares(self, coverage)).tolist():
            own = share == value
            if own.any():
                found[own] = self.distribution.quantile(value, temperature[own])
        return found - ROUNDING


@lru_cache(maxsize=256)
def _shares(calibration: Calibration, coverage: float) -> NDArray[np.float64]:
    """v_c at each place."""
    members = calibration.members(coverage)
    share = {own: conformal_share(calibration.take(own), coverage) for own in set(members)}
    return np.array([share[own] for own in members])


def conformal_share(positives: Positives, coverage: float) -> float:
    """v_c of the members of a segment.

    Raises:
        ValueError: if there are too few queries for such a coverage.
    """
    _check_num_queries(positives.num_queries, coverage)
    order = np.argsort(positives.share, kind="stable")
    missed = np.cumsum(positives.weight[order])
    return float(positives.share[order][last_allowed(missed, positives.num_queries, coverage)])


def _check_num_queries(num_queries: int, coverage: float) -> None:
    needed = num_needed(coverage)
    if num_queries < needed:
        raise ValueError(
            f"coverage {coverage:g} needs at least {needed} calibration queries, got {num_queries}: ask for less, or "
            "calibrate on more"
        )


def last_allowed(missed: NDArray[np.float64], num_queries: int, coverage: float) -> int:
    """The place of v_c among shares in ascending order.

    Args:
        missed: what a threshold just above each share misses, summed over queries [M].
    """
    may_miss = (1 - coverage) * (num_queries + 1) - 1
    rounding = 1e-9 * num_queries  # of sums of weights
    return min(int(np.searchsorted(missed, may_miss + rounding, side="right")), len(missed) - 1)


def num_needed(coverage: float) -> int:
    """The fewest calibration queries that can promise a coverage: 1 / (n + 1) <= 1 - c."""
    return math.ceil(coverage / (1 - coverage) * (1 - 1e-9))  # which may round to just above a whole number


def mean_f1(num_kept: NDArray[np.int64], is_relevant: NDArray[np.bool_], num_relevant: NDArray[np.int64]) -> float:
    """The mean over queries of F1 = 2 * hits / (kept + relevant).

    Args:
        num_kept: items kept from the start of each list [B].
        is_relevant: whether each item of each list is relevant [B, k].
        num_relevant: relevant items of each query in the corpus [B], at least 1.
    """
    kept = np.arange(is_relevant.shape[1]) < num_kept[:, None]
    hits = (kept & is_relevant).sum(axis=1)
    return float((2 * hits / (num_kept + num_relevant)).mean())


def best_mass(
    scores: NDArray[np.floating],
    is_relevant: NDArray[np.bool_],
    num_relevant: NDArray[np.int64],
    temperature: NDArray[np.floating],
    distribution: ScoreDistribution,
) -> tuple[float, float]:
    """c* = argmax_c of the mean F1 of the items kept with mass c, and that F1.

    Args:
        scores: lists [B, k], descending, long enough for the longest list that should be kept.

    Raises:
        ValueError: if there is no query.
    """
    if not len(scores):
        raise ValueError("choosing a mass needs at least 1 held-out query, got none")
    f1 = []
    for mass in CANDIDATE_MASSES:
        threshold = distribution.quantile(1 - float(mass), temperature)
        f1.append(mean_f1((scores >= threshold[:, None]).sum(axis=1), is_relevant, num_relevant))
    best = int(np.argmax(f1))
    return float(CANDIDATE_MASSES[best]), f1[best]
