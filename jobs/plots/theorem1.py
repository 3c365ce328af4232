"""The rows of jobs.benches.theorem1: error, effective rank and order, by numbers of a query and of an item."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from jobs.benches.record import RESULTS, recorded

SIZE = 64
TARGETS = {
    "uniform": "uniform in [-1, 1]",
    "permutation": "permutation",
    "relevance": "4 random relevant items",
    "ml-1m users": "ML-1M: who saw what",
    "ml-1m movies": "ML-1M: movies seen together",
    "low rank": "rank 8",
}
METHODS = {"mixture": ("C0", "o", "mixture, trained"), "dot": ("C1", "s", "dot product")}
AS_CONSTRUCTED = "1 x 2 x 5"  # drawn as a star: another shape, of as many numbers as the first


def main() -> None:
    rows = recorded("theorem1")
    environment = [row for row in rows if row.get("kind") == "environment"][-1]
    figure, axes = plt.subplots(3, len(TARGETS), figsize=(17, 8.6), layout="constrained", sharex=False)
    for column, (target, title) in zip(axes.T, TARGETS.items(), strict=True):
        values = latest(rows, "values", target)
        by_numbers(column[0], values, "error")
        by_numbers(column[1], values, "rank")
        column[1].axhline(np.mean([row["target_rank"] for row in values]), color="black", linestyle=":")
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
    axes[0, 0].legend(fontsize=8)
    figure.suptitle(
        f"Free embeddings of {SIZE} queries and {SIZE} items at equal numbers of parameters, three seeds. Dot products "
        "of the upper rows are exact bounds (Eckart and Young), of the last row trained. Star: two components, the "
        f"shape of a construction with error 0. {environment['cores']} cores of {environment['processor']}",
        fontsize=9,
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
            shape = "." if row in curve else "*"
            axis.plot(
                row["numbers_each"], row[measure], shape, color=colour, alpha=0.6, markersize=4 if row in curve else 9
            )
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
