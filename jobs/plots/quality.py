"""The rows of jobs.benches.quality: NDCG@10 by the numbers stored of an item, and learning curves."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from jobs.benches.record import RESULTS, recorded

LOOKS = {
    "dot": ("C1", "o", "dot product"),
    "wide": ("C3", "s", "as many numbers as the mixture"),
    "mol": ("C0", "^", "mixture"),
}


def main() -> None:
    rows = recorded("quality")
    cells = [row for row in rows if row.get("kind") == "cell"]
    sets = sorted({(row["data"], row["encoder"]) for row in cells})
    figure, axes = plt.subplots(2, len(sets), figsize=(3.2 * len(sets) + 1, 6.2), layout="constrained", squeeze=False)
    for column, (data, encoder) in zip(axes.T, sets, strict=True):
        own = [row for row in rows if (row.get("data"), row.get("encoder")) == (data, encoder)]
        column[0].set_title(f"{data}, {encoder}", fontsize=9)
        for name, (colour, marker, label) in LOOKS.items():
            ends = [row for row in own if row["kind"] == "cell" and row["similarity"] == name]
            for row in ends:
                filled = "none" if row["user"] else colour
                column[0].plot(
                    4 * row["numbers"], row["ndcg@10"], marker, color=colour, markerfacecolor=filled, label=label
                )
            curve = latest(
                [row for row in own if row["kind"] == "curve" and row["similarity"] == name and not row["seed"]]
            )
            if curve:
                epochs = [row["epochs"] * row["step"] / curve[-1]["step"] for row in curve]
                column[1].plot(epochs, [row["ndcg@10"] for row in curve], color=colour, marker=marker, markersize=3)
        column[0].set_xscale("log", base=2)
        column[0].set_xlabel("bytes of an item")
        column[1].set_xlabel("steps")
        for axis in column:
            axis.grid(alpha=0.3)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    axes[0, 0].legend(by_label.values(), by_label.keys(), fontsize=7)
    axes[0, 0].set_ylabel("NDCG@10 of test queries")
    axes[1, 0].set_ylabel("NDCG@10 of test queries")
    figure.savefig(RESULTS / "quality.png", dpi=110)


def latest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of each step, by step; a run that was cut off may have some twice."""
    by_step = {row["step"]: row for row in rows}
    return [by_step[step] for step in sorted(by_step)]


if __name__ == "__main__":
    main()
