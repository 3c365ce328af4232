"""How much of the relevant a calibration keeps on other queries, beside what it promises, and what lists it makes.

    coverage = mean_q |{j: p_qj >= v_c(tau_q)}| / |{j}|

Its 95% intervals are percentiles of a bootstrap by query. Drawing anew the queries that measure tells how well the
coverage of this very threshold is known; drawing anew the calibration queries as well tells how far from the nominal
chance alone may put it.

Axes: Q queries, M pairs of a query and a relevant item, k items of a list.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rails_ray.cutoffs.calibration import Calibration, Positives, conformal_share, last_allowed, num_needed

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
NUM_RESAMPLES = 1000


@dataclass(frozen=True)
class Measured:
    """
    nominal: the coverage that was asked for.
    segment: number of the tau_q segment, from 0; None for all queries.
    coverage: what was measured.
    low, high: its 95% interval over draws of the queries that measure.
    low_both, high_both: the interval over draws of the calibration queries as well.
    num_queries: how many queries measured it.
    """

    nominal: float
    segment: int | None
    coverage: float
    low: float
    high: float
    low_both: float
    high_both: float
    num_queries: int

    @property
    def is_as_promised(self) -> bool:
        """Return whether the nominal coverage lies where chance alone may put it."""
        return self.low_both <= self.nominal <= self.high_both


def segment_name(segment: int | None, edges: Sequence[float]) -> str:
    """Which queries a measurement is about.

    Args:
        edges: tau_q between segments.
    """
    if segment is None:
        return "all queries"
    if segment == 0:
        return f"tau_q up to {edges[0]:.3g}"
    if segment == len(edges):
        return f"tau_q above {edges[-1]:.3g}"
    return f"tau_q above {edges[segment - 1]:.3g}, up to {edges[segment]:.3g}"


def drift(measured: Sequence[Measured]) -> str | None:
    """A sentence on what lies farther from its promise than chance alone may put it; None if nothing does.

    Only all queries together are judged: among many segments some lie outside by chance.
    """
    off = [one for one in measured if one.segment is None and not one.is_as_promised]
    if not off:
        return None
    worst = max(off, key=lambda one: abs(one.coverage - one.nominal))
    return (
        f"coverage {worst.nominal:g} must keep that share of the relevant items, got {worst.coverage:.4f} "
        f"({worst.low_both:.4f} to {worst.high_both:.4f}) on {worst.num_queries} queries: calibrate on newer "
        "queries with `rails-ray calibrate`"
    )


def measure(calibration: Calibration, positives: Positives, levels: tuple[float, ...] = LEVELS) -> list[Measured]:
    """The coverage of all queries and of each segment, at the levels that the calibration has enough queries for.

    Args:
        positives: positives of queries that the calibration has not seen, by its distribution.
    """
    if not positives.num_queries:
        return []
    found = []
    generator = np.random.default_rng(0)
    segments = calibration.segments
    segment, place = segments.number(positives.temperature), segments.place(positives.temperature)
    for level in levels:
        if calibration.positives.num_queries < num_needed(level):
            continue
        # In a segment, members differ where tau_q equals an edge; several segments may share one threshold, which is
        # then drawn once.
        ranges = np.array(calibration.members(level))[place]  # [Q, 2]
        thresholds = {
            own: _Thresholds.of(calibration.take(own), level, generator)
            for own in sorted({(start, stop) for start, stop in ranges.tolist()})
        }
        parts: dict[int, list[_Part]] = {}
        for number, start, stop in np.unique(np.column_stack([segment, ranges]), axis=0).tolist():
            own = positives.take((segment == number) & (ranges == (start, stop)).all(axis=1))
            parts.setdefault(number, []).append(_Part.of(own, thresholds[start, stop], generator))
        found.append(_measured(level, None, [part for own in parts.values() for part in own]))
        if len(segments.edges):
            found += [_measured(level, number, own) for number, own in parts.items()]
    return found


def measure_shares(positives: Positives, levels: tuple[float, ...] = LEVELS) -> list[Measured]:
    """The coverage of shares taken at their word, v_c = 1 - c: what mass and nucleus keep, without a calibration.

        coverage = mean_q |{j: p_qj >= 1 - c}| / |{j}|

    Args:
        positives: of queries that no temperature was fitted on. For a mass a share is P(score < s_qj), for a nucleus
            the part of the softmax that lies at or below s_qj.
    """
    if not positives.num_queries:
        return []
    curve, generator = _Covered(positives), np.random.default_rng(0)
    covered = np.stack([curve.per_query(1 - level) for level in levels], axis=1)  # [Q, levels]
    draws = [_draw(positives.num_queries, generator) @ covered for _ in range(NUM_RESAMPLES)]
    low, high = np.quantile(np.stack(draws) / positives.num_queries, [0.025, 0.975], axis=0)
    return [
        Measured(
            nominal=level,
            segment=None,
            coverage=float(covered[:, number].mean()),
            low=float(low[number]),
            high=float(high[number]),
            low_both=float(low[number]),
            high_both=float(high[number]),
            num_queries=positives.num_queries,
        )
        for number, level in enumerate(levels)
    ]


def left_out(calibration: Calibration, levels: tuple[float, ...] = LEVELS) -> list[str]:
    """A sentence for each level that the calibration has too few queries for."""
    found = []
    for level in levels:
        try:
            calibration.check(level)
        except ValueError as error:
            found.append(str(error))
    return found


@dataclass(frozen=True)
class _Thresholds:
    """
    share: v_c.
    drawn: v_c of each draw of the calibration queries [NUM_RESAMPLES].
    """

    share: float
    drawn: NDArray[np.float64]

    @staticmethod
    def of(members: Positives, level: float, generator: np.random.Generator) -> "_Thresholds":
        return _Thresholds(conformal_share(members, level), _drawn_shares(members, level, generator))


@dataclass(frozen=True)
class _Part:
    """Sums over queries with one threshold of what is covered: measured, and drawn anew [NUM_RESAMPLES]."""

    num_queries: int
    covered: float
    drawn: NDArray[np.float64]
    drawn_both: NDArray[np.float64]

    @staticmethod
    def of(positives: Positives, thresholds: _Thresholds, generator: np.random.Generator) -> "_Part":
        curve = _Covered(positives)
        drawn, both = curve.drawn(thresholds.share, thresholds.drawn, generator)
        covered = float(curve.per_query(thresholds.share).sum())
        return _Part(num_queries=positives.num_queries, covered=covered, drawn=drawn, drawn_both=both)


class _Covered:
    """The sum over queries of the share of positives at or above a share v."""

    def __init__(self, positives: Positives) -> None:
        order = np.argsort(positives.share, kind="stable")
        self.share = positives.share[order]
        self.query = positives.query[order]
        self.weight = positives.weight[order]
        self.num_queries = positives.num_queries

    def per_query(self, share: float) -> NDArray[np.float64]:
        """The share of each query [Q]."""
        first = np.searchsorted(self.share, share, side="left")
        # as float64, which an empty bincount is not
        return np.bincount(self.query[first:], self.weight[first:], minlength=self.num_queries).astype(np.float64)

    def drawn(
        self, share: float, shares: NDArray[np.float64], generator: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sums over draws of as many queries [NUM_RESAMPLES]: at one v, and at a v for each draw."""
        fixed, moving = np.empty(NUM_RESAMPLES), np.empty(NUM_RESAMPLES)
        at_share = self.per_query(share)
        order = np.argsort(shares)  # draws come to few different places
        place, at_place = -1.0, at_share
        for number in order.tolist():
            counts = _draw(self.num_queries, generator)
            if shares[number] != place:
                place, at_place = shares[number], self.per_query(shares[number])
            fixed[number], moving[number] = counts @ at_share, counts @ at_place
        return fixed, moving


def _draw(num_queries: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """How often each query comes up in a draw of as many [Q]."""
    drawn = generator.integers(num_queries, size=num_queries) if num_queries else np.empty(0, dtype=np.int64)
    return np.bincount(drawn, minlength=num_queries).astype(np.float64)


def _drawn_shares(positives: Positives, level: float, generator: np.random.Generator) -> NDArray[np.float64]:
    """v_c of draws of the calibration queries [NUM_RESAMPLES]."""
    order = np.argsort(positives.share, kind="stable")
    share, query, weight = positives.share[order], positives.query[order], positives.weight[order]
    found = np.empty(NUM_RESAMPLES)
    for number in range(NUM_RESAMPLES):
        counts = _draw(positives.num_queries, generator)
        found[number] = share[last_allowed(np.cumsum(weight * counts[query]), positives.num_queries, level)]
    return found


def _measured(level: float, segment: int | None, parts: list[_Part]) -> Measured:
    num_queries = sum(part.num_queries for part in parts)
    drawn, both = (
        np.quantile(np.sum([getattr(part, name) for part in parts], axis=0) / num_queries, [0.025, 0.975])
        for name in ("drawn", "drawn_both")
    )
    return Measured(
        nominal=level,
        segment=segment,
        coverage=sum(part.covered for part in parts) / num_queries,
        low=float(drawn[0]),
        high=float(drawn[1]),
        low_both=float(both[0]),
        high_both=float(both[1]),
        num_queries=num_queries,
    )
