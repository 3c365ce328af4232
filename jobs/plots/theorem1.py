"""The rows of jobs.benches.theorem1: error, effective rank and order, by numbers of a query and of an item."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from jobs.benches.record import RESULTS, recorded

SIZE = 64
MOST_NUMBERS = 39
TARGETS = {
    "uniform": "uniform in [-1, 1]",
    "permutation": "permutation",
    "relevance": "4 random relevant items",
    "ml-1m users": "ML-1M: who saw what",
    "ml-1m movies": "ML-1M: movies seen together",
    "low rank": "rank 8",
}
METHODS = {"mixture": ("C0", "o", "mixture, trained"), "dot": ("C1", "s", "dot product")}
AS_CONSTRUCTED = "1 x 2 x 5"  # the construction's shape, trained: drawn apart
CONSTRUCTED = {"permutation": 1, "relevance": 4}  # ones a row


def main() -> None:
    rows = recorded("theorem1")
    environment = [row for row in rows if row.get("kind") == "environment"][-1]
    figure, axes = plt.subplots(3, len(TARGETS), figsize=(17, 8.6), layout="constrained", sharex=False)
    for column, (target, title) in zip(axes.T, TARGETS.items(), strict=True):
        values = latest(rows, "values", target)
        by_numbers(column[0], values, "error")
        by_numbers(column[1], values, "rank")
        for rank in {row["target_rank"] for row in values}:
            column[1].axhline(rank, color="black", linestyle=":", linewidth=0.8)
        for row in rows:
            if row.get("ones") == CONSTRUCTED.get(target, 0) and row["size"] == SIZE:
                column[0].plot(row["dot_width"], row["error"], "C2*", markersize=11, clip_on=False, zorder=3)
        column[0].set_title(title, fontsize=10)
        column[0].set_ylim(0, 1)
        column[1].set_ylim(0, SIZE + 3)
        if target == "low rank":
            by_hidden_units(column[2], latest(rows, "gate", "uniform"))
        else:
            by_numbers(column[2], latest(rows, "order", target), "rows_right")
            column[2].set_ylim(-0.03, 1.03)
    axes[0, 0].set_ylabel("squared error fitted:\nerror, share of the norm")
    axes[1, 0].set_ylabel("squared error fitted:\nrank at 99% (dotted: target)")
    axes[2, 0].set_ylabel("softmax fitted: share of queries\nwhose best items all come first")
    axes[0, 0].plot([], [], "C0x", label=f"mixture, trained, {AS_CONSTRUCTED}")
    axes[0, 0].plot([], [], "C2*", markersize=11, label="mixture, constructed")
    axes[0, 0].legend(fontsize=7)
    figure.suptitle(
        f"Free embeddings of {SIZE} queries and {SIZE} items at equal numbers of parameters, three seeds.\n"
        "Dot products of the upper rows are exact bounds (Eckart and Young), those of the last row are trained. "
        f"{environment['cores']} cores of {environment['processor']}",
        fontsize=10,
    )
    figure.savefig(RESULTS / "theorem1.png", dpi=110)


def latest(rows: list[dict[str, Any]], question: str, target: str) -> list[dict[str, Any]]:
    """Rows of the last execution that asked this of the target."""
    own = [
        row for row in rows if row.get("question") == question and row.get("target") == target and row["size"] == SIZE
    ]
    return [row for row in own if row["execution"] == own[-1]["execution"]]


def by_numbers(axis: Axes, rows: list[dict[str, Any]], measure: str) -> None:
    for method, (colour, marker, label) in METHODS.items():
        own = [row for row in rows if row["method"] == method]
        curve = [row for row in own if not row.get("shape", "").startswith(AS_CONSTRUCTED)]
        numbers = sorted({row["numbers_each"] for row in curve})
        means = [np.mean([row[measure] for row in curve if row["numbers_each"] == number]) for number in numbers]
        axis.plot(numbers, means, color=colour, marker=marker, markersize=4, label=label)
        for row in own:
            shape = "." if row in curve else "x"
            axis.plot(row["numbers_each"], row[measure], shape, color=colour, alpha=0.6, markersize=5)
    axis.set_xlim(0, MOST_NUMBERS)
    axis.set_xlabel("numbers of a query and of an item", fontsize=8)
    axis.grid(alpha=0.3)


def by_hidden_units(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """The same 8 numbers of a query and an item, and a wider w; dot products have the numbers of w too."""
    hidden = sorted({units(row) for row in rows})
    for measure, (colour, marker, label) in zip(("error", "dot_error"), METHODS.values(), strict=True):
        means = [np.mean([row[measure] for row in rows if units(row) == number]) for number in hidden]
        axis.plot(hidden, means, color=colour, marker=marker, markersize=4, label=label)
    axis.set_title("uniform, 2 x 2 x 2: a wider w", fontsize=10)
    axis.set(xscale="log", ylim=(0, 1))
    axis.set_xticks(hidden, [str(number) for number in hidden])
    axis.minorticks_off()
    axis.set_xlabel("hidden units of w (error, as in the first row)", fontsize=8)
    axis.grid(alpha=0.3)


def units(row: dict[str, Any]) -> int:
    """H of a row's shape."""
    return int(row["shape"].rsplit(" ", 1)[1])


if __name__ == "__main__":
    main()
