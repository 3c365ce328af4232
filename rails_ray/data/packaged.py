"""Data sets that come with the package."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Packaged:
    """A data set that needs no folder of the user's.

    name: name of its folder in storage, which the first use writes.
    tables: makes the tables from the number of validation queries, the number of test queries and the split's seed.
    files: names of the tables, and of the attributes that hold them; the last one, once written, says that all are
        there.
    """

    name: str
    tables: Callable[[int, int, int], Any]
    files: tuple[str, ...]
