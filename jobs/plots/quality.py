"""The rows of jobs.benches.quality: NDCG@10 by the numbers stored of an item, and learning curves."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from jobs.benches.quality_rows import ends
from jobs.benches.record import recorded
from jobs.plots import save

LOOKS = {
    "dot": ("C1", "o", "dot product"),
    "wide": ("C3", "s", "as many numbers as the mixture"),
    "mol": ("C0", "^", "mixture"),
    "mol + user": ("C2", "v", "mixture, one component the user"),
    "mol, gates without logits": ("C4", "D", "mixture whose gates read no logits"),
}


def main() -> None:
    rows, last = recorded("quality"), ends()
    sets = sorted({(cell.data, cell.encoder) for cell in last})
    figure, axes = plt.subplots(2, len(sets), figsize=(3.2 * len(sets) + 1, 6.2), layout="constrained", squeeze=False)
    for column, (data, encoder) in zip(axes.T, sets, strict=True):
        column[0].set_title(f"{data}, {encoder}", fontsize=9)
        for cell, end in last.items():
            if (cell.data, cell.encoder) != (data, encoder):
                continue
            colour, marker, label = LOOKS[cell.label]
            column[0].plot(4 * end["numbers"], end["ndcg@10"], marker, color=colour, label=label, markersize=5)
            if not cell.seed:
                curve = {
                    row["epoch"]: row["ndcg@10"] for row in rows if row["kind"] == "curve" and row["run"] == end["run"]
                }
                column[1].plot(
                    sorted(curve), [curve[epoch] for epoch in sorted(curve)], color=colour, marker=marker, markersize=3
                )
        column[0].set_xscale("log", base=2)
        column[0].set_xlabel("bytes of an item")
        column[1].set_xlabel("epochs")
        for axis in column:
            axis.grid(alpha=0.3)
    named = {label: handle for axis in axes[0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    axes[0, 0].legend(named.values(), named.keys(), fontsize=7)
    axes[0, 0].set_ylabel("NDCG@10 of test queries")
    axes[1, 0].set_ylabel("NDCG@10 of test queries")
    save(figure, "quality", dpi=110)


if __name__ == "__main__":
    main()
