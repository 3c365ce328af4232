"""The rows of jobs.benches.limit: of how many items each pair can be the best two."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import ScalarFormatter

from jobs.benches.limit import KINDS, NAME
from jobs.benches.record import recorded
from jobs.plots import save


def main() -> None:
    rows = [row for row in recorded(NAME) if "largest" in row]
    figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    for number, kind in enumerate(KINDS):
        found = {row["num_numbers"]: row["largest"] for row in rows if row["kind"] == kind.name}  # the last of each
        places = sorted(found)
        if places:
            counts = [found[place] for place in places]
            axes.plot(places, counts, marker="o^sDv"[number], color=f"C{number}", label=kind.name)
    axes.axhline(rows[-1]["most"], color="0.6", linewidth=1, linestyle=":", label="where the search ends")
    axes.set_xlabel("numbers of an item, and of a query")
    axes.set_ylabel("items, any two of which can be the best")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_xticks(sorted({row["num_numbers"] for row in rows}))
    axes.legend(fontsize=8)
    save(figure, NAME)


if __name__ == "__main__":
    main()
