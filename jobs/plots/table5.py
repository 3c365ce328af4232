"""The rows of jobs.benches.table5: recall@100 against latency, a panel per shape, at the largest batch."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

from jobs.benches.record import last_rows
from jobs.plots import save

MARKS = {"brute_force": "*", "two_pass": "P", "per_embedding": "o", "average": "s", "combined": "D"}


def main() -> None:
    environment, rows = last_rows("table5", "shape")
    batch = max(row["batch"] for row in rows)
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    figure, axes = plt.subplots(1, len(shapes), figsize=(4.2 * len(shapes), 4), layout="constrained", squeeze=False)
    for axis, shape in zip(axes[0], shapes, strict=True):
        own = [row for row in rows if row["shape"] == shape and row["batch"] == batch]
        for number, (method, mark) in enumerate(MARKS.items()):
            for prefix, is_filled in (("", True), ("naive ", False)):
                points = [row for row in own if row["method"] == prefix + method]
                if points:
                    axis.plot(
                        [row["latency_ms"] for row in points],
                        [row["recall@100"] for row in points],
                        f"C{number}{mark}",
                        markerfacecolor=f"C{number}" if is_filled else "none",
                        label=prefix + method,
                    )
        axis.set(title=f"{shape}", xscale="log", xlabel=f"ms per batch of {batch}", ylim=(-0.02, 1.04))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("recall@100 against brute force")
    axes[0][0].legend(fontsize=7)
    hardware = environment["gpu"] or f"{environment['cores']} cores of {environment['processor']}"
    figure.suptitle(f"Retrieval under a Mixture of Logits, k = 100, synthetic items; {hardware}", fontsize=10)
    save(figure, "table5")


if __name__ == "__main__":
    main()
