"""The rows of jobs.benches.dcs: what negatives from other workers bring, what a step takes, what it holds in memory."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from jobs.benches.record import recorded
from jobs.plots import save

COLOURS = {"in-batch": "C7", "NCS": "C1", "DCS": "C0", "DCS, primary and image": "C2", "DCS, ring": "C3"}
NAMES = {"tldr": "TLDR", "wordnet": "WordNet"}
WORKERS = 2  # of the panel of step times


def main() -> None:
    rows = recorded("dcs")
    hits = [row for row in rows if row.get("question") == "hit-rate" and not row.get("warm_up")]
    sets = [name for name in NAMES if any(row["data"] == name for row in hits)]
    figure, axes = plt.subplots(1, len(sets) + 2, figsize=(4.2 * (len(sets) + 2), 3.8), layout="constrained")
    for axis, name in zip(axes, sets, strict=False):
        hit_rates(axis, name, [row for row in hits if row["data"] == name])
    steps = [row for row in rows if row.get("question") == "step" and row["data"] == "tldr"]
    step_times(axes[-2], {row["kind"]: row for row in steps if row["workers"] == WORKERS})
    memory(axes[-1], [row for row in rows if row.get("question") == "memory"])
    environment = next(row for row in rows if row.get("kind") == "environment")
    figure.suptitle(
        f"Cross-device negatives, {hits[0]['local_batch']} pairs a worker, {hits[0]['steps']} steps; "
        f"{environment['cores']} cores of {environment['processor']}",
        fontsize=10,
    )
    save(figure, "dcs")


def hit_rates(axis: Axes, name: str, rows: list[dict[str, Any]]) -> None:
    """The mean over seeds, and each seed."""
    alone = [row["hit_rate"]["10"] for row in rows if row["workers"] == 1]
    for kind in ("in-batch", "NCS", "DCS"):
        of_kind = {
            workers: [row["hit_rate"]["10"] for row in rows if (row["kind"], row["workers"]) == (kind, workers)]
            for workers in sorted({row["workers"] for row in rows})
        }
        of_kind[1] = alone  # one worker has no others to take negatives from
        axis.plot(list(of_kind), [np.mean(values) for values in of_kind.values()], color=COLOURS[kind], label=kind)
        for workers, values in of_kind.items():
            axis.plot([workers] * len(values), values, "o", color=COLOURS[kind], markersize=3)
    axis.set(
        title=NAMES[name], xlabel="workers", xticks=[1, 2, 4], ylabel="hit rate at 10, test queries", ylim=(0, None)
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def step_times(axis: Axes, rows: dict[str, dict[str, Any]]) -> None:
    baseline = rows["in-batch"]["median_ms"]
    for number, (kind, row) in enumerate(rows.items()):
        axis.barh(number, row["median_ms"], color=COLOURS[kind])
        axis.text(row["median_ms"], number, f" {row['median_ms'] / baseline:.2f}", va="center", fontsize=8)
    axis.set(
        title=f"A step of {WORKERS} workers, TLDR",
        xlabel="median ms; beside it, against in-batch",
        yticks=range(len(rows)),
        yticklabels=list(rows),
        xlim=(0, 1.2 * max(row["median_ms"] for row in rows.values())),
    )
    axis.invert_yaxis()


def memory(axis: Axes, rows: list[dict[str, Any]]) -> None:
    for form, colour, label in (("gather", "C0", "all items gathered"), ("ring", "C3", "ring of blocks")):
        own = {row["items"]: row["peak_bytes"] / 2**20 for row in rows if row["form"] == form}
        axis.plot(list(own), list(own.values()), "o-", color=colour, label=label)
    axis.set(
        title=f"Peak memory of {rows[0]['local_batch']} queries",
        xscale="log",
        yscale="log",
        xlabel="items of all workers",
        ylabel="MiB beyond the start",
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


if __name__ == "__main__":
    main()
