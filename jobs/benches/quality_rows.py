"""What `quality` has recorded: trials and the ends of trainings, by cell."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jobs.benches.quality_models import Cell
from jobs.benches.record import recorded

NAME = "quality"


def ends() -> dict[Cell, dict[str, Any]]:
    """The last training of each cell and seed, of those with the most epochs of any with the same data and encoder."""
    rows = [row for row in recorded(NAME) if row.get("kind") == "cell" and "run" in row]
    most = Counter[tuple[str, str]]()
    for row in rows:
        place = row["data"], row["encoder"]
        most[place] = max(most[place], row["epochs"])
    return {Cell.of_row(row): row for row in rows if row["epochs"] == most[row["data"], row["encoder"]]}


def ends_by_seed() -> Iterator[tuple[Cell, list[dict[str, Any]]]]:
    """Each cell, with seed 0, and the ends of all its seeds."""
    found = dict[Cell, list[dict[str, Any]]]()
    for cell, row in ends().items():
        found.setdefault(replace(cell, seed=0), []).append(row)
    yield from sorted(found.items(), key=lambda pair: pair[0].name)


def trials(cell: Cell) -> list[dict[str, Any]]:
    """Recorded trials of a cell, the longest alone; a mixture with users has those of the one without, and so has
    every seed."""
    own = replace(cell, seed=0, user=False)
    rows = [row for row in recorded(NAME) if row.get("kind") == "trial" and Cell.of_row(row) == own]
    longest = max((row["epochs"] for row in rows), default=0)
    return [row for row in rows if row["epochs"] == longest]
