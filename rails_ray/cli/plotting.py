"""Plots, as PNG files."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display
import matplotlib.pyplot as plt
import numpy as np

from rails_ray.cutoffs.measuring import segment_name
from rails_ray.training.evaluation.calibrating import CalibrationReport


def calibration(report: CalibrationReport, title: str, path: Path) -> None:
    """Plot nominal against measured coverage with 95% intervals, and list lengths at each level."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    nominal = [one.nominal for one in report.lists]
    places = np.arange(len(nominal))
    left.axhline(0, color="black", linewidth=0.8)
    groups = [None, *range(len(report.edges) + 1)] if report.edges else [None]
    for number, segment in enumerate(groups):
        rows = [one for one in report.measured if one.segment == segment]
        shift = (number - (len(groups) - 1) / 2) * 0.15
        deviation = [one.coverage - one.nominal for one in rows]
        low = [max(one.coverage - one.low_both, 0.0) for one in rows]  # rounding can make it negative
        high = [max(one.high_both - one.coverage, 0.0) for one in rows]
        at = [nominal.index(one.nominal) + shift for one in rows]
        left.errorbar(at, deviation, [low, high], fmt="o", capsize=3, label=segment_name(segment, report.edges))
    left.set_xticks(places, [f"{level:g}" for level in nominal])
    left.set(xlabel="nominal coverage", ylabel="measured - nominal", title=title)
    left.legend(fontsize="small")
    tenth, middle, most = np.array([one.num_kept for one in report.lists]).reshape(-1, 3).T
    right.errorbar(places, middle, [middle - tenth, most - middle], fmt="o", capsize=3, label="median, 10% to 90%")
    right.plot(places, [one.mean for one in report.lists], "_", markersize=14, label="mean")
    right.set_xticks(places, [f"{level:g}" for level in nominal])
    right.set(xlabel="nominal coverage", ylabel="items kept", yscale="symlog", ylim=(0, None), title="lists")
    right.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
