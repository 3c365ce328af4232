"""The rows of jobs.benches.rbe: HitRate against calls, how supports are chosen, and what training adds."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from jobs.benches.record import recorded
from jobs.plots import save

NAMES = {
    "molecules": "molecules, 2,000",
    "syntax_trees": "syntax trees, 1,000",
    "ml_100k": "MovieLens-100k, 1,682",
    "ml_1m": "MovieLens-1M, 3,706",
    "tldr": "TLDR, 2,000",
    "scifact": "SciFact, 2,000",
}
LINES = {
    "RBE": ("C0", "-"),
    "AXN of RBE": ("C0", "--"),
    "dual encoder": ("C1", "-"),
    "AXN of the dual encoder": ("C1", "--"),
}


def main() -> None:
    rows = recorded("rbe")
    asked = [row for row in rows if row.get("question") == "calls" and row["table"] == "HR(K, 100)"]
    names = [name for name in NAMES if any(row["data"] == name for row in asked)]
    figure, axes = plt.subplots(1, len(names), figsize=(3.6 * len(names), 3.8), layout="constrained", sharey=True)
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        against_calls(axis, name, [row for row in asked if row["data"] == name])
    environment = next(row for row in rows if row.get("kind") == "environment")
    figure.suptitle(
        f"share of the ranker's 100 best items found, at equal calls in all; {environment['cores']} cores of "
        f"{environment['processor']}",
        fontsize=10,
    )
    save(figure, "rbe", dpi=110)


def against_calls(axis: Axes, name: str, rows: list[dict[str, float | str]]) -> None:
    """One line a model, the mean of all seeds of its last execution."""
    last = rows[-1]["execution"]
    for model, (colour, style) in LINES.items():
        own = [row for row in rows if row["model"] == model and row["execution"] == last]
        calls = sorted({row["calls"] for row in own})
        means = [np.mean([row["hit_rate"] for row in own if row["calls"] == number]) for number in calls]
        axis.plot(calls, means, color=colour, linestyle=style, label=model)
    axis.set_title(f"{NAMES[name]} items", fontsize=9)
    axis.set_xlabel("calls of the ranker")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7, loc="lower right")


if __name__ == "__main__":
    main()
