"""Calibrate the cut-offs of a model on one split, and measure on another what they keep.

Axes: Q queries of a split, k length of the lists kept.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.calibration import Calibration, Positives, best_mass
from rails_ray.cutoffs.distributions import Background, ScoreDistribution, fitted
from rails_ray.cutoffs.measuring import LEVELS, Measured, left_out, measure, measure_shares
from rails_ray.cutoffs.policies import MassCutoff, NucleusCutoff, cut
from rails_ray.cutoffs.support import BACKGROUNDS, CutoffSupport
from rails_ray.cutoffs.temperatures import (
    AS_TRAINED,
    HELD_OUT,
    Factor,
    Factors,
    Tempered,
    fit,
    held_out_background,
    log_likelihoods,
    tempered,
)
from rails_ray.errors import UnsupportedError
from rails_ray.training.evaluation.ranking import Ranking
from rails_ray.training.evaluation.softmax import MassAbove


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
class ShareKept:
    """Measurement of what one cut-off that takes a share keeps of the relevant, beside that share.

    cutoff, background: mass over a background, or nucleus.
    factor: on tau_q; 1 as trained.
    measured, lists: at each level, over all queries that measure.
    """

    cutoff: Literal["mass", "nucleus"]
    background: str | None
    factor: float
    measured: list[Measured]
    lists: list[ListLengths]

    @property
    def name(self) -> str:
        return self.cutoff if self.background is None else f"{self.cutoff} over {self.background}"


@dataclass(frozen=True)
class CalibrationReport:
    """
    calibrated_on, measured_on: names of the splits.
    num_queries: how many queries calibrated.
    edges: the tau_q between segments; a query at an edge belongs below it.
    measured: the coverage at each level, over all queries and by segment.
    lists: lengths of the lists at each level.
    left_out: a sentence for each level that has too few calibration queries, for each temperature not fitted, and for
        relevant items that no answer may hold.
    factors: the temperatures fitted on the calibration queries.
    shares: what mass and nucleus keep, with tau_q as trained and as fitted.
    """

    calibrated_on: str
    measured_on: str
    num_queries: int
    edges: tuple[float, ...]
    measured: list[Measured]
    lists: list[ListLengths]
    left_out: list[str]
    factors: Factors = AS_TRAINED
    shares: list[ShareKept] = field(default_factory=list)


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
    """Measure what a calibration keeps of the ranked lists of a corpus of `num_items`."""
    found = []
    for level in levels:
        threshold = calibration.threshold(level, ranking.temperature)
        num_kept = ((ranking.scores >= threshold[:, None]) & (ranking.scores > -np.inf)).sum(axis=1)
        found.append(_lengths(level, num_kept, ranking, num_items))
    return found


def _lengths(level: float, num_kept: NDArray[np.int64], ranking: Ranking, num_items: int) -> ListLengths:
    low, middle, high = np.quantile(num_kept, [0.1, 0.5, 0.9])
    return ListLengths(
        nominal=level,
        mean=float(num_kept.mean()),
        num_kept=(float(low), float(middle), float(high)),
        empty_fraction=float((num_kept == 0).mean()),
        is_truncated=bool((num_kept == ranking.scores.shape[1]).any()) and ranking.scores.shape[1] < num_items,
    )


def backgrounds_of(cutoff_support: CutoffSupport, fitted: Background | None, ranking: Ranking) -> dict[str, Background]:
    """The backgrounds that a mass can have, by name.

    Args:
        fitted: the background of the version's own scores; None if none fits.
        ranking: of the queries that calibrate, which give `held_out`.
    """
    if not cutoff_support.has_trained_temperature:
        return {}
    found = {}
    with suppress(ValueError):
        found[HELD_OUT] = held_out_background(
            ranking.pair_query, ranking.pair_score, ranking.temperature, cutoff_support.distribution
        )
    for name in BACKGROUNDS:
        if name != "fitted" or fitted is not None:
            with suppress(UnsupportedError):
                found[name] = cutoff_support.background(name, fitted)
    return found


def fitted_factors(
    cutoff_support: CutoffSupport,
    backgrounds: Mapping[str, Background],
    ranking: Ranking,
    of_softmax: NDArray[np.float64] | None,
) -> tuple[Factors, list[str]]:
    """The temperatures that fit the queries of a split, and a sentence for each that none fits.

    Args:
        of_softmax: mean log-probability of each query's relevant items at each factor [Q, F]; None without a logit.
    """
    mass, softmax, unfitted = dict[str, Factor](), None, []
    for name, background in backgrounds.items():
        try:
            mass[name] = fit(
                log_likelihoods(
                    ranking.pair_query, ranking.pair_score, ranking.temperature, cutoff_support.distribution(background)
                )
            )
        except ValueError as error:
            unfitted.append(f"mass over {name} keeps tau_q as trained: {error}")
    if of_softmax is not None:
        try:
            softmax = fit(of_softmax)
        except ValueError as error:
            unfitted.append(f"nucleus and probability keep tau_q as trained: {error}")
    return Factors(mass, softmax), unfitted


def fitted_mass(
    cutoff_support: CutoffSupport, backgrounds: Mapping[str, Background], factors: Factors, ranking: Ranking
) -> float | None:
    """The best mass by F1, over the calibration's own background at its temperature; None without a temperature."""
    name = factors.background
    if name not in factors.mass:
        return None
    found = ranking.scores, ranking.is_relevant, ranking.num_relevant, ranking.temperature
    mass, _ = best_mass(*found, factors.tempered_distribution(cutoff_support.distribution(backgrounds[name]), name))
    return mass


def nuclei_watched(cutoff_support: CutoffSupport, factors: Factors) -> dict[float, MassAbove]:
    """Make what must watch the ranking that measures nuclei, by the factor on tau_q: 1, and the fitted one if there
    is."""
    if cutoff_support.training_logit is None:
        return {}
    fitted = [] if factors.softmax is None else [factors.softmax.value]
    return {factor: MassAbove(tempered(cutoff_support.logit, factor)) for factor in (1.0, *fitted)}


def shares_kept(
    cutoff_support: CutoffSupport,
    backgrounds: Mapping[str, Background],
    factors: Factors,
    watched: Mapping[float, MassAbove],
    ranking: Ranking,
    num_items: int,
) -> list[ShareKept]:
    """Measure what masses and nuclei keep on the queries of another split, with tau_q as trained and as fitted.

    Args:
        watched: `nuclei_watched`, after the ranking.
    """
    found = []
    for name, background in backgrounds.items():
        own = [factors.mass[name].value] if name in factors.mass else []
        for factor in (1.0, *own):
            distribution = Tempered(cutoff_support.distribution(background), factor)
            lists = _lists_of(partial(MassCutoff, distribution=distribution), ranking, num_items)
            measured = measure_shares(positives_of(ranking, distribution))
            found.append(ShareKept("mass", name, factor, measured, lists))
    for factor, above in watched.items():
        measured = measure_shares(above.positives(ranking.temperature))
        policy = partial(NucleusCutoff, above.logit, above.log_normaliser, num_items=num_items)
        found.append(ShareKept("nucleus", None, factor, measured, _lists_of(policy, ranking, num_items)))
    return found


def _lists_of(policy: Callable[[float], Cutoff], ranking: Ranking, num_items: int) -> list[ListLengths]:
    is_cut_short = np.full(len(ranking.scores), ranking.scores.shape[1] < num_items)
    kept = (cut(ranking.scores, ranking.temperature, policy(level), is_cut_short).num_kept for level in LEVELS)
    return [_lengths(level, own, ranking, num_items) for level, own in zip(LEVELS, kept, strict=True)]


def report_on(
    calibration: Calibration,
    calibrated_on: str,
    ranking: Ranking,
    measured_on: str,
    num_items: int,
    factors: Factors = AS_TRAINED,
    shares: Sequence[ShareKept] = (),
    unfitted: Sequence[str] = (),
) -> CalibrationReport:
    """Measure what a calibration promises, and keeps on the queries of another split."""
    measured = measure(calibration, positives_of(ranking, calibration.distribution))
    levels = tuple(level for level in LEVELS if level in {one.nominal for one in measured})
    return CalibrationReport(
        calibrated_on=calibrated_on,
        measured_on=measured_on,
        num_queries=calibration.positives.num_queries,
        edges=tuple(calibration.segments.edges.tolist()),
        measured=measured,
        lists=list_lengths(calibration, ranking, num_items, levels),
        left_out=[*left_out(calibration), *unfitted],
        factors=factors,
        shares=list(shares),
    )
