"""The rows of jobs.benches.solar: quality against time, buckets and chunks, and how full the buckets are."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from jobs.benches.record import recorded
from jobs.plots import save

NAMES = {"tldr": "TLDR", "wordnet": "WordNet"}
WHEN = {"at first": "-", "after 20% churn": "--"}
COLOURS = {"balanced": "C0", "hashed": "C1"}


def main() -> None:
    rows = recorded("solar")
    figure, axes = plt.subplots(1, 4, figsize=(18, 4.2), layout="constrained")
    for axis, name in zip(axes[:2], NAMES, strict=True):
        quality(axis, name, latest([row for row in rows if row.get("question") == "quality" and row["data"] == name]))
    ablation(axes[2], latest([row for row in rows if row.get("question") == "ablation"]))
    load(axes[3], latest([row for row in rows if row.get("question") == "load" and row["data"] == "wordnet"]))
    environment = next(row for row in rows if row.get("kind") == "environment")
    figure.suptitle(f"SOLAR; {environment['cores']} cores of {environment['processor']}", fontsize=10)
    save(figure, "solar", dpi=110)


def latest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the last execution."""
    return [row for row in rows if row["execution"] == rows[-1]["execution"]]


def quality(axis: Axes, name: str, rows: list[dict[str, Any]]) -> None:
    """P@1 of queries whose items training saw, with milliseconds per query and bytes of an item."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for place, method in enumerate(methods):
        own = [row for row in rows if row["method"] == method]
        found = np.mean([row["seen"]["P@1"] for row in own])
        time = np.mean([row["ms_per_query"] for row in own])
        axis.barh(place, found, color="C0" if method.startswith("SOLAR") else "C1")
        size = f"{time:.2g} ms, {own[0]['bytes_per_item']:.0f} B"
        axis.annotate(f"{found:.3f}  {size}", (found, place), (3, 0), textcoords="offset points", va="center", size=7)
    axis.set_yticks(range(len(methods)), methods, fontsize=7)
    axis.invert_yaxis()
    axis.set(xlabel="P@1 on seen items", title=f"{NAMES[name]}, {rows[0]['items']:,} items")
    axis.margins(x=0.7)


def ablation(axis: Axes, rows: list[dict[str, Any]]) -> None:
    for number, num_buckets in enumerate(sorted({row["num_buckets"] for row in rows})):
        for method, line in (("full", "-"), ("m=25", "o")):
            own = [row for row in rows if row["num_buckets"] == num_buckets and row["method"] == method]
            chunks, found = [row["num_chunks"] for row in own], [row["seen"]["P@1"] for row in own]
            axis.plot(chunks, found, line, color=f"C{number}", ms=4, label=f"R={num_buckets:,}, {method}")
    axis.set(xscale="log", xlabel="chunks K", ylabel="P@1 on seen items", title="TLDR: buckets and chunks")
    axis.set_xticks([4, 8, 16], ["4", "8", "16"])
    axis.minorticks_off()
    axis.legend(fontsize=7)


def load(axis: Axes, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        label = f"{row['codes']}, {row['when']}: max/mean {row['max_over_mean']:.2f}"
        axis.step(
            range(len(row["histogram"])),
            np.maximum(row["histogram"], 0.5),
            WHEN[row["when"]],
            where="mid",
            color=COLOURS[row["codes"]],
            label=label,
        )
    axis.set(yscale="log", xlabel="items in a bucket", ylabel="buckets, of all chunks")
    axis.set_title(f"WordNet: load of {rows[0]['num_buckets']:,} buckets")
    axis.set_ylim(top=1e8)  # room for the legend
    axis.legend(fontsize=7, loc="upper left")


if __name__ == "__main__":
    main()
