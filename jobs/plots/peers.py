"""The rows of jobs.benches.peers: a query's latency against its recall, and queries a second of 32 clients; medians."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from jobs.benches.record import recorded
from jobs.plots import save

COLOURS = {
    "faiss": "C7",
    "local": "C0",
    "usearch": "C1",
    "lancedb": "C2",
    "milvus-lite": "C4",
    "by-hand": "C7",
    "single": "C0",
    "chroma": "C3",
    "pgvector": "C5",
}
IN_PROCESS = ("faiss", "local", "usearch", "lancedb", "milvus-lite")
HATCHES = {"hnsw": "", "exact": "//"}
REPETITIONS = 3  # as many as the bench makes in one execution


def main() -> None:
    everything = recorded("peers")
    rows = latest(everything)
    sizes = sorted({row["num_items"] for row in rows})
    figure, axes = plt.subplots(2, len(sizes), figsize=(5.2 * len(sizes), 7.4), layout="constrained", squeeze=False)
    for (latencies, loads), size in zip(axes.T, sizes, strict=True):
        own = [row for row in rows if row["num_items"] == size]
        latency(latencies, own)
        latencies.set_title(f"{size:,} vectors")
        throughput(loads, own)
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=7, ncols=3 * len(sizes), loc="outside lower center")
    used = {row["execution"] for row in rows}
    machines = dict.fromkeys(
        f"{row['cores']} cores of {row['processor']}"
        for row in everything
        if row.get("kind") == "environment" and row["execution"] in used
    )
    figure.suptitle(f"Ten best of vectors; {', and '.join(machines)}", fontsize=10)
    save(figure, "peers")


def latest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last REPETITIONS rows of each peer, kind and number of vectors, whichever executions measured them."""
    measured = defaultdict[tuple[str, str, int], list[dict[str, Any]]](list)
    for row in rows:
        if "peer" in row and "failed" not in row:
            measured[row["peer"], row["kind"], row["num_items"]].append(row)
    return [row for own in measured.values() for row in own[-REPETITIONS:]]


def latency(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Lower right is better. A line is a graph, a point of it an ef_search; a star is an exact search.

    Its star is open if it is searched in process.
    """
    for peer in COLOURS:
        own = [row for row in rows if row["peer"] == peer]
        rungs = {rung["ef_search"]: list[dict[str, Any]]() for row in own for rung in row["ladder"]}
        for row in own:
            for rung in row["ladder"] if row["kind"] == "hnsw" else ():
                rungs[rung["ef_search"]].append(rung)
        points = [of_beam for _, of_beam in sorted(rungs.items()) if of_beam]
        style = {"color": COLOURS[peer], "linestyle": "--" if peer in IN_PROCESS else "-"}
        recalls = [median(rung["recall"] for rung in of_beam) for of_beam in points]
        axis.plot(recalls, [median(rung["p50_ms"] for rung in of_beam) for of_beam in points], marker=".", **style)
        exact = [row["p50_ms"] for row in own if row["kind"] == "exact"]
        if exact:
            axis.plot(
                1.0,
                median(exact),
                marker="*",
                markersize=9,
                fillstyle="none" if peer in IN_PROCESS else "full",
                **style,
            )
        if own:
            axis.plot([], [], label=f"{peer}{' (in process)' if peer in IN_PROCESS else ''}", **style)
    axis.set(xlabel="recall@10", ylabel="ms of a query, median", yscale="log")
    axis.grid(alpha=0.3)


def throughput(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Queries a second of 32 clients, by server and kind."""
    bars = [(peer, kind) for peer in COLOURS for kind in HATCHES if peer not in IN_PROCESS]
    for peer, kind in bars:
        own = [row["queries_per_s_32"] for row in rows if (row["peer"], row["kind"]) == (peer, kind)]
        if own:
            axis.bar(f"{peer}\n{kind}", median(own), color=COLOURS[peer], hatch=HATCHES[kind], alpha=0.8)
    axis.set(ylabel="queries/s of 32 clients")
    axis.tick_params(axis="x", labelsize=7)
    axis.grid(alpha=0.3, axis="y")


if __name__ == "__main__":
    main()
