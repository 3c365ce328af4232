"""The rows of jobs.benches.quality: what a mixture gains over dot products, on which data, and what it costs."""

from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from jobs.benches.record import RESULTS, recorded

OTHERS = {"dot": ("C1", "o", "a dot product"), "wide": ("C3", "s", "a dot product of as many numbers")}
PRICES = {  # of the mixture, in times of the dot product's
    "training": ("C0", "^"),
    "bytes of an item": ("C2", "D"),
    "exact search": ("C4", "v"),
    "cheapest search (.99 of the 100 best)": ("C5", "P"),
}
NAMES = {
    "ml-1m": "MovieLens-1M",
    "amazon-beauty": "Amazon Beauty",
    "tldr": "TLDR",
    "scifact": "SciFact",
    "sasrec": "SASRec",
    "hstu": "HSTU",
}

Mixture = tuple[str, str, bool]  # data, encoder, whether the user is a component


def main() -> None:
    rows = recorded("quality")
    gains = {(*_mixture(row), row["other"]): row for row in rows if "relative_ndcg_low" in row}
    mixtures = sorted({key[:3] for key in gains}, reverse=True)
    figure, (gained, paid) = plt.subplots(
        1, 2, figsize=(11, 1.6 + 0.55 * len(mixtures)), layout="constrained", sharey=True
    )
    for other, (colour, marker, label) in OTHERS.items():
        shift = 0.13 if other == "dot" else -0.13
        found = [(y, gains[(*mixture, other)]) for y, mixture in enumerate(mixtures) if (*mixture, other) in gains]
        middle = [100 * row["relative_ndcg"] for _, row in found]
        low = [100 * (row["relative_ndcg"] - row["relative_ndcg_low"]) for _, row in found]
        high = [100 * (row["relative_ndcg_high"] - row["relative_ndcg"]) for _, row in found]
        places = [y + shift for y, _ in found]
        gained.errorbar(middle, places, xerr=[low, high], fmt=marker, color=colour, label=f"over {label}", capsize=3)
    gained.axvline(0, color="0.5", linewidth=1)
    gained.set_xlabel("what the mixture gains in NDCG@10 of test queries, % (95% intervals)")
    gained.set_yticks(range(len(mixtures)), [_named(mixture) for mixture in mixtures])
    for name, (colour, marker) in PRICES.items():
        prices = [(price, y) for y, mixture in enumerate(mixtures) for price in _prices(rows, mixture, name)]
        if prices:
            paid.plot(*zip(*prices, strict=True), marker, color=colour, label=name)
    paid.axvline(1, color="0.5", linewidth=1)
    paid.set_xscale("log", base=2)
    paid.xaxis.set_major_formatter("{x:g}")
    paid.set_xlabel("what it costs, in times of the dot product")
    for axis in (gained, paid):
        axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=6, fontsize=8)
    figure.savefig(RESULTS / "quality_gains.png", dpi=110)


def _mixture(row: dict[str, Any]) -> Mixture:
    return row["data"], row["encoder"], row["user"]


def _named(mixture: Mixture) -> str:
    data, encoder, user = mixture
    return f"{NAMES.get(data, data)}, {NAMES.get(encoder, encoder)}" + (", user" if user else "")


def _prices(rows: Sequence[dict[str, Any]], mixture: Mixture, name: str) -> list[float]:
    """The price in times of the dot product's, if both are known."""
    data, encoder, user = mixture
    costs = []
    for similarity, of_user in (("mol", user), ("dot", False)):
        own = [
            row
            for row in rows
            if row.get("similarity") == similarity and not row["seed"] and _mixture(row) == (data, encoder, of_user)
        ]
        ends = [row for row in own if row["kind"] == "cell"]
        searches = [row for row in own if row["kind"] == "search" and ends and row["run"] == ends[-1]["run"]]
        if name == "training":
            costs.append([row["seconds"] for row in ends])
        elif name == "bytes of an item":
            costs.append([row["numbers"] for row in ends])
        elif name == "exact search":
            costs.append([row["exact_ms"] for row in searches])
        else:
            costs.append([row["cheapest"]["ms"] for row in searches])
    return [costs[0][-1] / costs[1][-1]] if all(costs) else []


if __name__ == "__main__":
    main()
