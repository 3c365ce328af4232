"""Calibrate the cut-offs of a model on one split, and measure on another what they keep.

Axes: Q queries of a split, k length of the lists kept.
"""

from dataclasses import dataclass

import numpy as np

from rails_ray.cutoffs.calibration import Calibration, Positives
from rails_ray.cutoffs.distributions import Background, ScoreDistribution, fitted
from rails_ray.cutoffs.measuring import LEVELS, Measured, left_out, measure
from rails_ray.evaluation.ranking import Ranking


@dataclass(frozen=True)
class ListLengths:
    """
    nominal: the coverage that was asked for.
    mean: mean length of the lists.
    num_kept: quantiles .1, .5 and .9 of the lengths.
    empty_fraction: share of queries that keep nothing.
    is_truncated: whether a list was longer than those that were ranked, so that the mean is too low.
    """

    nominal: float
    mean: float
    num_kept: tuple[float, float, float]
    empty_fraction: float
    is_truncated: bool


@dataclass(frozen=True)
class CalibrationReport:
    """
    calibrated_on, measured_on: names of the splits.
    num_queries: how many queries calibrated.
    edges: the tau_q between segments; a query at an edge belongs below it.
    measured: the coverage at each level, over all queries and by segment.
    lists: lengths of the lists at each level.
    left_out: a sentence for each level that has too few calibration queries.
    """

    calibrated_on: str
    measured_on: str
    num_queries: int
    edges: tuple[float, ...]
    measured: list[Measured]
    lists: list[ListLengths]
    left_out: list[str]


def positives_of(ranking: Ranking, distribution: ScoreDistribution) -> Positives:
    """The shares of all relevant items that the queries of a split can find."""
    return Positives.of(ranking.pair_query, ranking.pair_score, ranking.temperature, distribution)


def fitted_background(ranking: Ranking) -> Background:
    """The background of the corpus's own scores.

    Raises:
        ValueError: if too few or equal scores were sampled for one.
    """
    sampled = ranking.sampled_scores[np.isfinite(ranking.sampled_scores)]
    return fitted(np.clip(sampled.astype(np.float64), -1.0, 1.0))  # a cosine of float32 may round to above 1


def list_lengths(
    calibration: Calibration, ranking: Ranking, num_items: int, levels: tuple[float, ...]
) -> list[ListLengths]:
    """What a calibration keeps of the ranked lists of a corpus of `num_items`."""
    found = []
    for level in levels:
        threshold = calibration.threshold(level, ranking.temperature)
        num_kept = ((ranking.scores >= threshold[:, None]) & (ranking.scores > -np.inf)).sum(axis=1)
        low, middle, high = np.quantile(num_kept, [0.1, 0.5, 0.9])
        found.append(
            ListLengths(
                nominal=level,
                mean=float(num_kept.mean()),
                num_kept=(float(low), float(middle), float(high)),
                empty_fraction=float((num_kept == 0).mean()),
                is_truncated=bool((num_kept == ranking.scores.shape[1]).any()) and ranking.scores.shape[1] < num_items,
            )
        )
    return found


def report_on(
    calibration: Calibration, calibrated_on: str, ranking: Ranking, measured_on: str, num_items: int
) -> CalibrationReport:
    """What a calibration promises, and keeps on the queries of another split."""
    measured = measure(calibration, positives_of(ranking, calibration.distribution))
    levels = tuple(level for level in LEVELS if level in {one.nominal for one in measured})
    return CalibrationReport(
        calibrated_on=calibrated_on,
        measured_on=measured_on,
        num_queries=calibration.positives.num_queries,
        edges=tuple(calibration.segments.edges.tolist()),
        measured=measured,
        lists=list_lengths(calibration, ranking, num_items, levels),
        left_out=left_out(calibration),
    )
