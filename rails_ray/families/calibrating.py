"""Calibrate the cut-offs of a stored version on held-out queries, and measure on others what they then keep."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.cutoffs.calibration import NUM_SEGMENTS, Calibration
from rails_ray.cutoffs.distributions import Background
from rails_ray.cutoffs.support import CutoffSupport
from rails_ray.cutoffs.temperatures import HELD_OUT
from rails_ray.errors import NotFoundError
from rails_ray.families import calibrations
from rails_ray.families.calibrations import StoredCalibration
from rails_ray.families.registry import served_family
from rails_ray.families.version_queries import VersionQueries
from rails_ray.schema.filters import canonical
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation import seen
from rails_ray.training.evaluation.calibrating import (
    CalibrationReport,
    backgrounds_of,
    fitted_background,
    fitted_factors,
    fitted_mass,
    nuclei_watched,
    positives_of,
    report_on,
    shares_kept,
)
from rails_ray.training.evaluation.ranking import AllScores, Ranking, rank_all
from rails_ray.training.evaluation.report import LONGEST_LIST
from rails_ray.training.evaluation.softmax import LogLikelihoods


@dataclass(frozen=True)
class Calibrated:
    """A calibration to store, and what measuring it needs.

    backgrounds: those that a mass can have, by name.
    unfitted: a sentence for each temperature that could not be fitted.
    """

    stored: StoredCalibration
    backgrounds: Mapping[str, Background]
    unfitted: Sequence[str]


def calibrated(
    found: VersionQueries, split: str, *, background: str = "uniform", num_segments: int = NUM_SEGMENTS
) -> Calibrated:
    """Calibrate on a split of the queries, over the items that are searched.

    Args:
        background: distribution assumed for the score of any item: uniform, sphere or fitted.
        num_segments: groups of queries, by tau_q, to calibrate separately.

    Raises:
        UnsupportedError: if the scores are not bounded.
        ValueError: if no query has a relevant item among those that are searched, or too few scores can be fitted.
    """
    cutoff_support = _support(found)
    likelihoods = [] if cutoff_support.training_logit is None else [LogLikelihoods(cutoff_support.logit)]
    ranking = _ranked(found, split, likelihoods)
    fitted = None
    try:
        fitted = fitted_background(ranking)
    except ValueError:
        if background == "fitted":
            raise
    chosen = cutoff_support.background(background, fitted)
    positives = positives_of(ranking, cutoff_support.distribution(chosen))
    if not positives.num_queries:
        raise _no_query(found, split)
    backgrounds = backgrounds_of(cutoff_support, fitted, ranking)
    factors, unfitted = fitted_factors(
        cutoff_support, backgrounds, ranking, likelihoods[0].values() if likelihoods else None
    )
    stored = StoredCalibration(
        positives=positives,
        num_segments=num_segments,
        background_name=background,
        background=chosen,
        fitted=fitted,
        split=split,
        created_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        factors=factors,
        held_out=backgrounds.get(HELD_OUT),
        mass=fitted_mass(cutoff_support, backgrounds, factors, ranking),
        filter=None if not found.filter else canonical(found.filter),
        num_items=found.num_live,
    )
    return Calibrated(stored, backgrounds, unfitted)


def measured(found: VersionQueries, own: Calibrated, split: str) -> CalibrationReport:
    """Measure on another split how much of the relevant items the calibrated cut-offs keep, and what is promised.

    Raises:
        ValueError: if that split has no query with a relevant item among those that are searched.
    """
    stored, cutoff_support, num_items = own.stored, _support(found), len(found.items)
    calibration = Calibration(stored.positives, cutoff_support.distribution(stored.background), stored.num_segments)
    watching = nuclei_watched(cutoff_support, stored.factors)
    ranking = _ranked(found, split, list(watching.values()))
    shares = shares_kept(cutoff_support, own.backgrounds, stored.factors, watching, ranking, num_items)
    hidden = [sentence for name in (stored.split, split) for sentence in _left_out(found, name)]
    remarks = [*own.unfitted, *seen.left_out(found.queries(stored.split), stored.split), *hidden]
    return report_on(calibration, stored.split, ranking, split, num_items, stored.factors, shares, remarks)


def recalibrate(
    storage: Storage, version: str, changed_fraction: float, allowed: AllowedCode = OURS_ALONE
) -> tuple[int, list[str]]:
    """Make each calibration of a version anew, on the same split of the version's data, if more than a fraction of the
    items have changed since.

    Returns:
        The number of new calibrations, and a sentence on each that could not be made, whose former one goes on.

    Raises:
        DamagedError: if a file of the version differs from its manifest.
    """
    number, problems = 0, list[str]()
    for former in calibrations.read_all(storage, version):
        if former.changed_fraction <= changed_fraction:
            continue
        filter = None if former.filter is None else json.loads(former.filter)
        try:
            found = VersionQueries.read(storage, version, None, [former.split], allowed, filter)
            own = calibrated(
                found, former.split, background=former.background_name, num_segments=former.num_segments
            ).stored
        except (NotFoundError, ValueError) as error:
            under = "" if filter is None else f" under the filter {former.filter}"
            problems.append(
                f"the calibration{under} goes on as it was made at {former.created_at}, before "
                f"{former.changed_fraction:.0%} of the items changed: {error}"
            )
            continue
        calibrations.write(storage, version, own)
        number += 1
    return number, problems


def _support(found: VersionQueries) -> CutoffSupport:
    cutoff_support = served_family(found.config).cutoff_support
    cutoff_support.check_bounded_scores()
    return cutoff_support


def _ranked(found: VersionQueries, split: str, watching: Sequence[Callable[[AllScores], None]]) -> Ranking:
    queries = found.queries(split)
    if not len(queries):
        raise _no_query(found, split)
    return rank_all(found.model, found.items, queries, min(LONGEST_LIST, len(found.items)), watching=watching)


def _no_query(found: VersionQueries, split: str) -> ValueError:
    passes = " that the filter passes" if found.filter else ""
    return ValueError(f"split {split!r} must hold a query with a relevant item in the index{passes}, got none")


def _left_out(found: VersionQueries, split: str) -> list[str]:
    """A sentence on the queries of a split that a filter leaves without a relevant item; none if there are none."""
    number, whole = found.num_left_out(split), len(found.data.queries[split])
    return [f"{number:,} of the {whole:,} queries of split {split}, as the filter hides all their relevant items"] * (
        number > 0
    )
