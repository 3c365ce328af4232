"""Calibrate the cut-offs of a version on held-out queries, in one task on the cluster."""

from collections.abc import Mapping, Sequence
from typing import Any

from rails_ray.allowed_code import AllowedCode
from rails_ray.cutoffs.calibration import NUM_SEGMENTS
from rails_ray.cutoffs.support import BACKGROUNDS
from rails_ray.families import calibrations
from rails_ray.families.calibrating import calibrated, measured
from rails_ray.families.config import DataConfig
from rails_ray.families.version_queries import VersionQueries
from rails_ray.on_ray.evaluating import check_split, data_folder
from rails_ray.on_ray.nodes import check_shared
from rails_ray.on_ray.progress import OnProgress, in_task
from rails_ray.schema.filters import parse
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.calibrating import CalibrationReport


def calibrate(
    storage: str,
    *,
    version: str | None = None,
    split: str = "valid",
    measured_on: str = "test",
    background: str = "uniform",
    num_segments: int = NUM_SEGMENTS,
    data: DataConfig | None = None,
    filter: Mapping[str, Any] | None = None,
    allow_code: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> CalibrationReport:
    """Calibrate a version's cut-offs, store the calibration with it, and measure it on another split.

    Coverage rests on the held-out positives themselves; mass, nucleus and probability on temperatures fitted to them.

    The version may be published or not. A server reads the calibration when it starts, or soon if it follows. A
    calibration over the items that a filter passes stands beside that over all items, and holds for searches under the
    same filter.

    Args:
        version: by default the current one.
        split: queries to calibrate on; the model must not have been trained on them.
        background: distribution assumed for the score of any item: uniform, sphere or fitted.
        num_segments: groups of queries, by tau_q, to calibrate separately.
        data: data to calibrate on; by default the data in the version's config.
        filter: calibrate over the items that it passes. Queries whose relevant items it hides are left out.
        allow_code: as in `local.open`.
        on_progress: called a few times a second.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if the version's files differ from its manifest.
        ValueError: if the splits are not two of "train", "valid" and "test", the background is unknown, no query has a
            relevant item in the index, the filter fits no attributes, the config names code that is not allowed, or a
            node does not find the local folder of storage or data.
    """
    check_split(split)
    check_split(measured_on)
    if split == measured_on:
        raise ValueError(f"measured_on must differ from split, got {split!r} for both")
    if background not in BACKGROUNDS:
        raise ValueError(f"background must be one of {', '.join(BACKGROUNDS)}, got {background!r}")
    if num_segments < 1:
        raise ValueError(f"segments must be at least 1, got {num_segments}")
    if filter is not None:
        parse(filter)  # before a cluster is asked
    store, allowed = Storage(storage), AllowedCode.given(allow_code)
    check_shared(str(store), data_folder(store, data, version=version))
    arguments = str(store), version, split, measured_on, background, num_segments, data, filter, allowed
    return in_task(_calibrate, *arguments, on_progress=on_progress)


def _calibrate(
    storage: str,
    version: str | None,
    split: str,
    measured_on: str,
    background: str,
    num_segments: int,
    data: DataConfig | None,
    filter: Mapping[str, Any] | None,
    allowed: AllowedCode,
) -> CalibrationReport:
    store = Storage(storage)
    found = VersionQueries.read(store, version, data, [split, measured_on], allowed, filter)
    own = calibrated(found, split, background=background, num_segments=num_segments)
    report = measured(found, own, measured_on)
    calibrations.write(store, found.version, own.stored)
    versions.announce(store, found.version)
    return report
