"""Plots, as PNG files."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from rails_ray.cutoffs.measuring import segment_name
from rails_ray.schema.responses import ExplainResponse, SearchResponse
from rails_ray.training.evaluation.calibrating import CalibrationReport

KEPT, CUT = "tab:blue", "tab:orange"  # which differ for readers who see fewer colours
MOST_PANELS = 6  # queries, or items, in one plot
MOST_NUMBERS = 100  # gates that are written into a map
LONGEST_NAME = 40  # characters


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
    _save(figure, path)


def plot_scores(answer: SearchResponse, path: Path, names: Sequence[str] = ()) -> None:
    """Plot the scores of an answer by rank, what the cut-off keeps and what it cuts, and the cut-off as a line.

    An answer lists what its cut-off cuts if its request named k alone.

    Args:
        names: of its queries; of many, the first ones are drawn.
    """
    results = answer.results[:MOST_PANELS]
    figure, grid = plt.subplots(
        max(len(results), 1), 1, figsize=(8, 2.6 * max(len(results), 1)), layout="constrained", squeeze=False
    )
    titles = [*names, *(f"query {number}" for number in range(len(names), len(results)))]
    for axes, result, name in zip(grid[:, 0], results, titles, strict=False):
        ranks, num_kept = np.arange(1, len(result.scores) + 1), result.num_kept
        for label, color, part in (("kept", KEPT, slice(num_kept)), ("cut", CUT, slice(num_kept, None))):
            if len(ranks[part]):
                axes.scatter(ranks[part], result.scores[part], s=14, color=color, label=f"{label}: {len(ranks[part])}")
        if result.threshold is not None:
            axes.axhline(result.threshold, color="black", linewidth=0.8, label=f"cut-off at {result.threshold:.3g}")
        elif num_kept < len(ranks):
            axes.axvline(num_kept + 0.5, color="black", linewidth=0.8, label=f"cut-off after {num_kept}")
        axes.set(title=_short(name), ylabel="score", xlim=(0.5, max(len(ranks), 1) + 0.5))
        axes.xaxis.get_major_locator().set_params(integer=True)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="small", loc="upper right")
    grid[-1, 0].set(xlabel="rank")
    _save(figure, path)


def plot_explanation(answer: ExplainResponse, path: Path, name: str = "", parts: Sequence[str] = ()) -> None:
    """Plot what each pair of components adds to the score of each item, its gate times its cosine: as bars if one side
    has a single component (the terms of BM25, the chunks of SOLAR), and else as a map with the gates as numbers.

    Args:
        name: of the query.
        parts: names of what bars show, such as the query's words; without, they are numbered.
    """
    items = answer.items[:MOST_PANELS]
    gates, cosines = (np.array([getattr(item, kind) for item in items]) for kind in ("gates", "cosines"))
    added = gates * cosines
    largest = max(float(np.abs(added).max(initial=0.0)), 1e-9)
    figure, grid = plt.subplots(
        1, len(items), figsize=(max(3.2 * len(items), 5), 3.6), layout="constrained", squeeze=False, sharey=True
    )
    is_map = min(added.shape[1:]) > 1
    for number, (axes, item) in enumerate(zip(grid[0], items, strict=True)):
        if is_map:
            image = axes.imshow(added[number], cmap="RdBu", vmin=-largest, vmax=largest, aspect="auto")
            axes.set(xlabel="item component", xticks=range(added.shape[2]), yticks=range(added.shape[1]))
            for (row, column), gate in np.ndenumerate(gates[number]) if added[0].size <= MOST_NUMBERS else ():
                color = "white" if abs(added[number][row, column]) > 0.6 * largest else "black"
                axes.text(column, row, f"{gate:.2f}", ha="center", va="center", fontsize="x-small", color=color)
        else:
            bars = added[number].ravel()
            axes.barh(range(len(bars)), bars, color=[KEPT if bar >= 0 else CUT for bar in bars])
            axes.set(xlabel="added to the score", xlim=(1.1 * min(added.min(), 0), 1.1 * largest))
            axes.set_yticks(range(len(bars)), [_short(part) for part in parts] or None)
        axes.set_title(f"{_short(item.title or str(item.item))}\n{item.score:.3f}", fontsize="small")
    if is_map:
        figure.colorbar(image, ax=grid[0].tolist(), label="gate x cosine, gates as numbers")
    else:
        grid[0, 0].invert_yaxis()  # the first term on top
    grid[0, 0].set(ylabel="query component" if is_map else "word" if parts else "term, chunk or component")
    figure.suptitle(_short(name))
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box is drawn for an emoji
        figure.savefig(path, dpi=120)
    plt.close(figure)


def _short(name: str) -> str:
    """A name as matplotlib draws it, without its mathematics."""
    shown = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
    return shown.replace("$", r"\$")
