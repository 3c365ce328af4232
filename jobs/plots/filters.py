"""The peers of jobs.benches.filters: latency against recall of each share of the items that a filter passes."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from jobs.benches.record import last_rows
from jobs.plots import save

COLOURS = {"rails-ray": "C0", "lancedb": "C2", "pgvector": "C5"}


def main() -> None:
    environment, measured = last_rows("filters", "peer")
    rows = [row for row in measured if row["kind"] == "peer"]
    shares = sorted({row["share"] for row in rows}, reverse=True)
    figure, axes = plt.subplots(
        1, len(shares), figsize=(3.6 * len(shares), 4.0), layout="constrained", sharex=True, sharey=True
    )
    for axis, share in zip(axes, shares, strict=True):
        latency(axis, [row for row in rows if row["share"] == share])
        axis.set_title(f"{100 * share:g}% pass")
    axes[0].set_ylabel("ms of a query, median")
    axes[-1].legend(fontsize=7)
    hardware = f"{environment['cores']} cores of {environment['processor']}"
    figure.suptitle(f"Ten best of {rows[0]['num_items']:,} x 64 under a filter; {hardware}", fontsize=10)
    save(figure, "filters")


def latency(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Lower right is better. Each point of a line is a beam of a graph, a cross the exact search."""
    for peer, colour in COLOURS.items():
        own = [row for row in rows if row["peer"] == peer]
        graph = [row for row in own if row["ef_search"] is not None]
        exact = [row for row in own if row["ef_search"] is None]
        if graph:
            axis.plot(*points(graph), "o-", color=colour, label=peer)
        axis.plot(*points(exact), "x", color=colour, label=f"{peer}, exact")
    axis.set(xlabel="recall@10", yscale="log")
    axis.grid(alpha=0.3)


def points(rows: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [row["recall"] for row in rows], [row["p50_ms"] for row in rows]


if __name__ == "__main__":
    main()
