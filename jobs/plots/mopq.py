"""The rows of `jobs.benches.mopq quality`: recall against bytes per item, all methods on one picture."""

from collections import defaultdict
from statistics import mean
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from jobs.benches.record import recorded
from jobs.plots import save

TRAINED = {
    "mopq dcs": ("MoPQ, all workers", "C3", "*"),
    "mopq ncs": ("MoPQ, constants", "C3", "d"),
    "mopq in_batch": ("MoPQ, in-batch", "C3", "o"),
    "distill_vq dcs": ("Distill-VQ, all workers", "C4", "*"),
    "distill_vq in_batch": ("Distill-VQ", "C4", "o"),
    "jpq in_batch": ("JPQ", "C5", "o"),
    "spq dcs": ("SPQ, all workers", "C2", "*"),
    "spq in_batch": ("SPQ", "C2", "o"),
    "dpq in_batch": ("DPQ", "C6", "o"),
    "dvsq in_batch": ("DVSQ", "C8", "o"),
    "dqn in_batch": ("DQN", "C9", "o"),
}
STEPS, BATCH, CODEWORDS = 500, 512, 256  # of all methods but for a few rows
FITTED = {"pq": ("PQ", "C7", "s"), "opq": ("OPQ", "C0", "s")}


def main() -> None:
    every = recorded("mopq")
    processors = sorted({row["processor"] for row in every if row.get("kind") == "environment"})
    rows = [row for row in every if "method" in row]
    corpora = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = plt.subplots(1, len(corpora), figsize=(7.5 * len(corpora), 9), layout="constrained", squeeze=False)
    for axis, corpus in zip(axes[0], corpora, strict=True):
        recall(axis, [row for row in rows if row["data"] == corpus])
        axis.set(title=corpus)
    axes[0][0].legend(fontsize=7, loc="lower right")
    figure.suptitle(f"What codes find among all items: texts as 128 numbers; {', '.join(processors)}", fontsize=10)
    save(figure, "mopq")


def recall(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Upper left is better. Each point is the mean of the seeds."""
    points = defaultdict[tuple[str, float], list[float]](list)
    for row in chosen(rows):
        negatives = row["negatives"]
        name = row["method"] if negatives == "none" else f"{row['method']} {negatives}"
        points[name, row["bytes"]].append(row["R@10"])
    for name in dict.fromkeys(name for name, _ in points):
        own = sorted((size, mean(found)) for (named, size), found in points.items() if named == name)
        sizes, values = zip(*own, strict=True)
        label, colour, marker = {**TRAINED, **FITTED}.get(name, (None, "0.6", "x"))
        axis.plot(sizes, values, marker, linestyle="-" if len(own) > 1 else "", color=colour, label=label, alpha=0.9)
        if label is None:
            axis.annotate(
                name, (sizes[-1], values[-1]), fontsize=7, xytext=(-6, -3), textcoords="offset points", ha="right"
            )
    sizes = [4, 8, 16, 32, 64, 128, 256, 512]
    axis.set(xlabel="bytes per item", ylabel="R@10", xscale="log", xticks=sizes, xticklabels=sizes)
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of equal steps, batches and codewords, chosen by l2, of the settings that the first seed chose."""
    best = dict[str, Any]()
    for method in {row["method"] for row in rows if "config" in row}:
        plain = [row for row in rows if row["method"] == method and is_plain(row)]
        tried = [row for row in plain if row["negatives"] == "in_batch"] or plain
        best[method] = max(tried, key=lambda row: (row["seed"] == tried[0]["seed"], row["valid R@10"]))["config"]
    equal = [row for row in rows if (row.get("steps", STEPS), row.get("batch", BATCH)) == (STEPS, BATCH)]
    equal = [row for row in equal if row.get("num_codewords", CODEWORDS) == CODEWORDS]
    return [row for row in equal if "config" not in row or row["config"] == best[row["method"]]]


def is_plain(row: dict[str, Any]) -> bool:
    """Whether it is one of 8 x 256 that chooses by l2."""
    sizes = row["num_subspaces"], row["num_codewords"]
    return sizes == (8, 256) and row["config"].get("selection", "l2") == "l2"


if __name__ == "__main__":
    main()
