"""The rows of jobs.benches.quality: what a mixture gains over dot products, on which data, and what it costs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from jobs.benches.quality_models import Cell
from jobs.benches.quality_rows import ends
from jobs.benches.record import recorded
from jobs.plots import save

OTHERS = {"dot": ("C1", "o", "a dot product"), "wide": ("C3", "s", "a dot product of as many numbers")}
PRICES = {  # of the mixture, in times of the dot product's
    "training": ("C0", "^"),
    "bytes of an item": ("C2", "D"),
    "exact search": ("C4", "v"),
    "cheapest search (.99 of the 100 best)": ("C5", "P"),
}
PROPERTIES = {
    "spread": "how spread the history is",
    "novelty": "how new the answer is to the history",
    "popularity": "how popular the answer is",
}
NAMES = {
    "ml-1m": "MovieLens-1M",
    "amazon-beauty": "Amazon Beauty",
    "tldr": "TLDR",
    "scifact": "SciFact",
    "sasrec": "SASRec",
    "hstu": "HSTU",
}


def main() -> None:
    rows = recorded("quality")
    gains = {(Cell.of_row(row), row["other"]): row for row in rows if "relative_ndcg_low" in row}
    mixtures = sorted(
        {mixture for mixture, _ in gains if (mixture.gates, mixture.activation) == ("all", "silu")},
        key=lambda mixture: mixture.name,
        reverse=True,
    )
    height = max(3.4, 1.4 + 0.6 * len(mixtures))
    figure, (gained, grouped, paid) = plt.subplots(1, 3, figsize=(12.5, height), layout="constrained")
    for other, (colour, marker, label) in OTHERS.items():
        shift = 0.1 if other == "dot" else -0.1
        found = [(y, gains[mixture, other]) for y, mixture in enumerate(mixtures) if (mixture, other) in gains]
        middle = [100 * row["relative_ndcg"] for _, row in found]
        low = [100 * (row["relative_ndcg"] - row["relative_ndcg_low"]) for _, row in found]
        high = [100 * (row["relative_ndcg_high"] - row["relative_ndcg"]) for _, row in found]
        places = [y + shift for y, _ in found]
        gained.errorbar(middle, places, xerr=[low, high], fmt=marker, color=colour, label=f"over {label}", capsize=3)
    gained.axvline(0, color="0.5", linewidth=1)
    gained.set_title("gain in NDCG@10, %, with 95% intervals", fontsize=9)
    _by_group(grouped, rows)
    for name, (colour, marker) in PRICES.items():
        prices = [(price, y) for y, mixture in enumerate(mixtures) for price in _prices(rows, mixture, name)]
        if prices:
            paid.plot(*zip(*prices, strict=True), marker, color=colour, label=name)
    paid.axvline(1, color="0.5", linewidth=1)
    paid.set_xscale("log", base=2)
    paid.xaxis.set_major_formatter("{x:g}")
    paid.set_title("price, in times of the dot product's", fontsize=9)
    for axis in (gained, paid):
        axis.set_ylim(-0.6, len(mixtures) - 0.4)
        axis.set_yticks(range(len(mixtures)), [])
    gained.set_yticks(range(len(mixtures)), [_named(mixture) for mixture in mixtures])
    for axis in (gained, grouped, paid):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)  # below, where no marker is
    save(figure, "quality_gains", dpi=110)


def _by_group(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Gains over a dot product of as many numbers, for quarters of the users of MovieLens-1M."""
    grouped = [row for row in rows if row.get("kind") == "group" and row["against"] == "wide"]
    own = [row for row in grouped if replace(Cell.of_row(row), seed=0) == Cell("ml-1m", "sasrec", "mol")]
    for number, (name, label) in enumerate(PROPERTIES.items()):
        latest = {row["group"]: row for row in own if row["property"] == name}
        groups = [latest[group] for group in sorted(latest)]
        gain = [100 * (row["ndcg@10"] / row["other"] - 1) for row in groups]
        error = [100 * row["standard_error"] / row["other"] for row in groups]
        places = [row["group"] + 1 + 0.06 * number for row in groups]
        axis.errorbar(places, gain, yerr=error, marker="o", markersize=4, capsize=2, label=label)
    axis.axhline(0, color="0.5", linewidth=1)
    axis.set_xticks([1, 2, 3, 4])
    axis.set_xlabel("quarter of the queries, from least to most")
    axis.set_title("MovieLens-1M, SASRec: gain over as many numbers, %", fontsize=9)


def _named(mixture: Cell) -> str:
    kind = mixture.label.removeprefix("mol").replace(" + ", " and ")
    return f"{NAMES.get(mixture.data, mixture.data)},\n{NAMES.get(mixture.encoder, mixture.encoder)}{kind}"


def _is_of_one_machine(rows: Sequence[dict[str, Any]], run: str) -> bool:
    """Whether a training was not carried on elsewhere, where a second is worth something else."""
    executions = {row["execution"] for row in rows if row.get("run") == run and row.get("kind") in ("curve", "cell")}
    own = [row for row in rows if row.get("kind") == "environment" and row["execution"] in executions]
    return len({(row["processor"], row["gpu"]) for row in own}) == 1


def _prices(rows: Sequence[dict[str, Any]], mixture: Cell, name: str) -> list[float]:
    """The price in times of the dot product's, if both are known."""
    costs, last = [], ends()
    for cell in (mixture, replace(mixture, similarity="dot", user=False, gates="all", activation="silu")):
        found = [last[cell]] if cell in last else []
        searches = [row for row in rows if row.get("kind") == "search" and found and row["run"] == found[0]["run"]]
        if name == "training":
            costs.append([row["seconds"] for row in found if _is_of_one_machine(rows, row["run"])])
        elif name == "bytes of an item":
            costs.append([row["numbers"] for row in found])
        elif name == "exact search":
            costs.append([row["exact_ms"] for row in searches])
        else:
            costs.append([row["cheapest"]["ms"] for row in searches])
    return [costs[0][-1] / costs[1][-1]] if all(costs) else []


if __name__ == "__main__":
    main()
