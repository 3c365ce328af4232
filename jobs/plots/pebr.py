"""pEBR, Figure 2 on real data, and what each policy finds: `python -m jobs.plots.pebr`."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from jobs.benches.record import last_rows
from jobs.plots import save

GROUPS = ("many", "some", "few")
NAMES = {"emoji": "emoji", "wordnet": "WordNet hyponyms", "ml-1m": "ML-1M", "amazon-beauty": "Beauty"}


def main() -> None:
    _, rows = last_rows("pebr", "part")
    data = [name for name in NAMES if any(row["data"] == name for row in rows)]
    figure, axes = plt.subplots(3, len(data), figsize=(4.6 * len(data), 11), layout="constrained", squeeze=False)
    for column, name in enumerate(data):
        own = [row for row in rows if row["data"] == name]
        histogram(axes[0, column], own, NAMES[name])
        frontier(axes[1, column], own, has_legend=column == len(data) - 1)
        promised(axes[2, column], own)
    save(figure, "pebr", dpi=100)


def histogram(axis: Any, rows: list[dict[str, Any]], title: str) -> None:
    """Figure 2: lengths of the lists of coverage .5, by how many relevant items there are (BetaNCE, all seeds)."""
    lengths: dict[str, list[int]] = {}
    for row in rows:
        if "lengths" in row and row["model"] == "beta":
            lengths.setdefault(row["group"], []).extend(row["lengths"])
    most = max(np.quantile(own, 0.99) for own in lengths.values())
    for group in (name for name in GROUPS if name in lengths):
        axis.hist(lengths[group], bins=30, range=(0, most), histtype="step", density=True, label=f"{group} relevant")
    axis.set(title=f"{title}\nFigure 2: items kept by coverage .5", xlabel="items", ylabel="density")
    axis.legend(fontsize="small")


def frontier(axis: Any, rows: list[dict[str, Any]], has_legend: bool) -> None:
    """Precision and recall of lists of the same average length: means over seeds."""
    equal = [row for row in rows if row["kind"] == "equal" and row["tuned_on"] == row["group"] == "all"]
    kept = min(row["mean_kept"] for row in equal)
    for model, marker in (("softmax", "s"), ("beta", "o"), ("exp", "^")):
        for number, policy in enumerate(dict.fromkeys(row["policy"] for row in equal)):
            points = [
                (row["precision"], row["recall"])
                for row in equal
                if (row["model"], row["policy"], row["mean_kept"]) == (model, policy, kept)
            ]
            if points and policy != "hindsight":
                label = policy if model == "beta" else None
                axis.plot(*np.mean(points, axis=0), marker, color=f"C{number}", label=label)
    axis.set(title=f"{kept} items on average", xlabel="precision", ylabel="recall")
    if has_legend:
        title = "o BetaNCE\n^ ExpNCE\nsquare: softmax"
        axis.legend(fontsize="small", title=title, loc="upper left", bbox_to_anchor=(1.02, 1))


def promised(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Measured less nominal coverage, with the interval over both draws (BetaNCE, by thirds of tau_q, all seeds)."""
    own = [row for row in rows if row["kind"] == "coverage" and row["model"] == "beta" and row["num_segments"] == 3]
    levels = sorted({row["nominal"] for row in own})
    axis.axhline(0, color="black", linewidth=0.8)
    for number, segment in enumerate((None, 0, 1, 2)):
        part = [row for row in own if row["segment"] == segment]
        label = "all queries" if segment is None else f"third {segment + 1} by tau_q"
        for place, row in enumerate(part):
            at = levels.index(row["nominal"]) + (number - 1.5) * 0.18 + 0.03 * (place // len(levels))
            spread = [[row["coverage"] - row["low_both"]], [row["high_both"] - row["coverage"]]]
            axis.errorbar(
                at, row["coverage"] - row["nominal"], spread, fmt=".", color=f"C{number}", label=label, capsize=2
            )
            label = None
    axis.set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
    axis.set(title="coverage: measured - nominal", xlabel="nominal coverage")
    axis.legend(fontsize="x-small")


if __name__ == "__main__":
    main()
