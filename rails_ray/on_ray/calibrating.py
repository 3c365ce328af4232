"""Calibrate the cut-offs of a version on held-out queries, in one task on the cluster."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rails_ray.allowed_code import AllowedCode
from rails_ray.cutoffs.calibration import NUM_SEGMENTS, Calibration
from rails_ray.cutoffs.support import BACKGROUNDS
from rails_ray.cutoffs.temperatures import HELD_OUT
from rails_ray.families import calibrations
from rails_ray.families.calibrations import StoredCalibration
from rails_ray.families.config import DataConfig
from rails_ray.families.registry import served_family
from rails_ray.families.version_queries import VersionQueries
from rails_ray.on_ray.evaluating import check_split
from rails_ray.on_ray.nodes import check_shared
from rails_ray.on_ray.progress import OnProgress, in_task
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


def calibrate(
    storage: str,
    *,
    version: str | None = None,
    split: str = "valid",
    measured_on: str = "test",
    background: str = "uniform",
    num_segments: int = NUM_SEGMENTS,
    data: DataConfig | None = None,
    allow_code: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> CalibrationReport:
    """Calibrate a version's cut-offs, store the calibration with it, and measure it on another split.

    Coverage rests on the held-out positives themselves; mass, nucleus and probability on temperatures fitted to them.

    The version may be published or not. A server reads the calibration when it starts.

    Args:
        version: by default the current one.
        split: queries to calibrate on; the model must not have been trained on them.
        background: distribution assumed for the score of any item: uniform, sphere or fitted.
        num_segments: groups of queries, by tau_q, to calibrate separately.
        data: data to calibrate on; by default the data in the version's config.
        allow_code: as in `local.open`.
        on_progress: called a few times a second.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if the version's files differ from its manifest.
        ValueError: if the splits are not two of "train", "valid" and "test", the background is unknown, no query has a
            relevant item in the index, the config names code that is not allowed, or a node does not find the local
            folder of storage or data.
    """
    check_split(split)
    check_split(measured_on)
    if split == measured_on:
        raise ValueError(f"measured_on must differ from split, got {split!r} for both")
    if background not in BACKGROUNDS:
        raise ValueError(f"background must be one of {', '.join(BACKGROUNDS)}, got {background!r}")
    if num_segments < 1:
        raise ValueError(f"segments must be at least 1, got {num_segments}")
    store, allowed = Storage(storage), AllowedCode.given(allow_code)
    check_shared(str(store), [data.folder if data else None])
    arguments = str(store), version, split, measured_on, background, num_segments, data, allowed
    return in_task(_calibrate, *arguments, on_progress=on_progress)


def _calibrate(
    storage: str,
    version: str | None,
    split: str,
    measured_on: str,
    background: str,
    num_segments: int,
    data: DataConfig | None,
    allowed: AllowedCode,
) -> CalibrationReport:
    store = Storage(storage)
    found = VersionQueries.read(store, version, data, [split, measured_on], allowed)
    cutoff_support = served_family(found.config).cutoff_support
    cutoff_support.check_bounded_scores()

    def ranked(split: str, watching: Sequence[Callable[[AllScores], None]]) -> Ranking:
        k = min(LONGEST_LIST, len(found.items))
        return rank_all(found.model, found.items, found.queries(split), k, watching=watching)

    likelihoods = [] if cutoff_support.training_logit is None else [LogLikelihoods(cutoff_support.logit)]
    before = ranked(split, likelihoods)
    fitted = None
    try:
        fitted = fitted_background(before)
    except ValueError:
        if background == "fitted":
            raise
    chosen = cutoff_support.background(background, fitted)
    distribution = cutoff_support.distribution(chosen)
    positives = positives_of(before, distribution)
    if not positives.num_queries:
        raise ValueError(f"split {split!r} must hold a query with a relevant item in the index, got none")
    calibration = Calibration(positives, distribution, num_segments)
    backgrounds = backgrounds_of(cutoff_support, fitted, before)
    factors, unfitted = fitted_factors(
        cutoff_support, backgrounds, before, likelihoods[0].values() if likelihoods else None
    )
    calibrations.write(
        store,
        found.version,
        StoredCalibration(
            positives=positives,
            num_segments=num_segments,
            background_name=background,
            background=chosen,
            fitted=fitted,
            split=split,
            created_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            factors=factors,
            held_out=backgrounds.get(HELD_OUT),
            mass=fitted_mass(cutoff_support, backgrounds, factors, before),
        ),
    )
    watching = nuclei_watched(cutoff_support, factors)
    after = ranked(measured_on, list(watching.values()))
    return report_on(
        calibration,
        split,
        after,
        measured_on,
        len(found.items),
        factors,
        shares_kept(cutoff_support, backgrounds, factors, watching, after, len(found.items)),
        [*unfitted, *seen.left_out(found.queries(split), split)],
    )
