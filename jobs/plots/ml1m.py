"""The learning curves of jobs.benches.ml1m: HR@10 and MRR on the validation item, by step."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from jobs.benches.record import last_rows
from jobs.plots import save

PAPER = {"ml1m-sasrec": 0.2818, "ml1m-sasrec-mol": 0.3036}  # RAILS, Table 3: test HR@10


def main() -> None:
    environment, rows = last_rows("ml1m", "recipe")
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for number, recipe in enumerate(dict.fromkeys(row["recipe"] for row in rows)):
        own = [row for row in rows if row["recipe"] == recipe]
        curve = [row for row in own if row["kind"] == "validation"]
        test = next((row for row in own if row["kind"] == "test"), None)
        for axis, measure in zip(axes, ("hr@10", "mrr"), strict=True):
            steps = [row["step"] for row in curve]
            label = recipe if test is None else f"{recipe}: test {test[measure]:.4f}"
            axis.plot(steps, [row[measure] for row in curve], f"C{number}o-", label=label)
            if test is not None:
                axis.plot([test["steps"]], [test[measure]], f"C{number}*", markersize=14)
        if recipe in PAPER:
            axes[0].axhline(PAPER[recipe], color=f"C{number}", linestyle=":", label=f"{recipe}: paper's test")
    for axis, title in zip(axes, ("HR@10", "MRR"), strict=True):
        axis.set(title=f"{title} on the validation item (stars: test)", xlabel="training step", ylim=(0, None))
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    hardware = environment["gpu"] or f"{environment['cores']} cores of {environment['processor']}"
    figure.suptitle(f"MovieLens-1M, leave-one-out over 3,706 items; {hardware}", fontsize=10)
    save(figure, "ml1m")


if __name__ == "__main__":
    main()
