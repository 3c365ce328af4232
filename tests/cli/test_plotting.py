from dataclasses import replace
from pathlib import Path

import matplotlib.image
import pytest

from rails_ray.cli import plotting
from rails_ray.cutoffs.measuring import Measured
from rails_ray.training.evaluation.calibrating import CalibrationReport, ListLengths

MEASURED = Measured(0.9, None, 0.91, 0.9, 0.92, 0.88, 0.94, 50)
LISTS = ListLengths(0.9, 3.5, (0.0, 2.0, 9.0), 0.1, False)
REPORT = CalibrationReport("valid", "test", 50, (0.1,), [MEASURED, replace(MEASURED, segment=1)], [LISTS], [])
FULL = 0.9999999999999999  # of a segment whose queries all keep everything, where rounding leaves an interval below it


@pytest.mark.parametrize(
    "report",
    [
        REPORT,
        replace(REPORT, edges=(), measured=[MEASURED]),
        replace(REPORT, measured=[replace(MEASURED, coverage=1.0, low_both=1.0, high_both=FULL)]),
        replace(REPORT, measured=[], lists=[]),
    ],
    ids=["segments", "one segment", "rounding", "nothing measured"],
)
def test_a_calibration_is_drawn(report: CalibrationReport, tmp_path: Path) -> None:
    plotting.calibration(report, "version v1", tmp_path / "drawn.png")
    height, width, _ = matplotlib.image.imread(tmp_path / "drawn.png").shape
    assert width > height > 300
