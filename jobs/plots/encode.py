"""The rows of jobs.benches.encode: memory over time at each size, and items per second beside the plain loop's."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from jobs.benches.record import last_execution
from jobs.plots import save

WANTED_MB = {"driver": 500, "worker": 1536}


def main() -> None:
    environment, rows = last_execution("encode")
    warm = [row for row in rows if not row.get("is_cold") and row["way"] in ("ray", "loop")]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    memory(left, [row for row in warm if row["way"] == "ray" and row["model"] == "two-tower"])
    speed(right, warm)
    hardware = f"{environment['cores']} cores of {environment['processor']}"
    figure.suptitle(f"Encoding items into 4 shards, two workers; {hardware}", fontsize=10)
    save(figure, "encode")


def memory(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """The last execution of each size; time as a share of its whole."""
    for number, row in enumerate({row["num_items"]: row for row in rows}.values()):
        seconds, driver, worker = zip(*row["curve"], strict=True)
        share = [second / seconds[-1] for second in seconds]
        millions = f"{row['num_items'] / 1e6:g} million"
        axis.plot(share, driver, f"C{number}-", label=f"driver, {millions} ({row['seconds']:.0f} s)")
        axis.plot(share, worker, f"C{number}--", label=f"largest worker, {millions}")
    for name, wanted in WANTED_MB.items():
        axis.axhline(wanted, color="C7", linestyle=":")
        axis.annotate(f"wanted of the {name}", (0, wanted), fontsize=7, va="bottom")
    axis.set(title="resident memory, short texts", xlabel="share of the time", ylabel="MB", ylim=(0, None))
    axis.legend(fontsize=7)
    axis.grid(alpha=0.3)


def speed(axis: Axes, rows: list[dict[str, Any]]) -> None:
    """Each execution as a dot."""
    cases = list(dict.fromkeys((row["model"], row["num_items"]) for row in rows))
    for number, way in enumerate(("ray", "loop")):
        own = [row for row in rows if row["way"] == way]
        places = [cases.index((row["model"], row["num_items"])) + 0.2 * (number - 0.5) for row in own]
        name = "rails-ray" if way == "ray" else "torch and pyarrow, one process"
        axis.plot(places, [row["items_per_s"] / 1000 for row in own], f"C{number}o", label=name)
    labels = [f"{model}\n{num_items / 1e6:g} million" for model, num_items in cases]
    axis.set(title="thousand items per second", xticks=range(len(cases)), xticklabels=labels, ylim=(0, None))
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


if __name__ == "__main__":
    main()
