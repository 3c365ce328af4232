"""The rows of jobs.benches.indexes: recall against time for each kind and storage, and what the contract costs."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from jobs.benches.record import last_execution
from jobs.plots import save

COLOURS = {"torch scan": "C7", "flat": "C0", "ivf": "C1", "hnsw": "C2", "hnswlib": "C3"}
STYLES = {"fp32": "o-", "fp16": "s--", "sq8": "^:"}


def main() -> None:
    environment, rows = last_execution("indexes")
    corpora = list(dict.fromkeys(row["corpus"] for row in rows))
    figure, axes = plt.subplots(1, len(corpora), figsize=(4.6 * len(corpora), 4.2), layout="constrained", squeeze=False)
    for axis, corpus in zip(axes[0], corpora, strict=True):
        recall(axis, [row for row in rows if row["corpus"] == corpus])
    axes[0][0].legend(fontsize=7)
    hardware = f"{environment['cores']} cores of {environment['processor']}"
    figure.suptitle(f"Ten best of 32 queries at once, through our contract; {hardware}", fontsize=10)
    save(figure, "indexes")


def recall(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Lower right is better. Each line is a kind and a storage, each point a width of search."""
    lists = [row for row in rows if "recall" in row]
    for kind, storage in dict.fromkeys((row["kind"], row.get("storage", "fp32")) for row in lists):
        own = [row for row in lists if (row["kind"], row.get("storage", "fp32")) == (kind, storage)]
        label = kind if kind == "torch scan" else f"{kind} {storage}"
        axis.plot(
            [row["recall"] for row in own],
            [row["ms"] for row in own],
            STYLES[storage],
            color=COLOURS[kind],
            label=label,
        )
    first = rows[0]
    title = f"{first['corpus']}: {first['num_items']:,} x {first['width']}"
    axis.set(title=title, xlabel="recall@10", ylabel="ms for 32 queries", yscale="log")
    axis.grid(alpha=0.3)


if __name__ == "__main__":
    main()
