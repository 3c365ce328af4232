"""Data sets that come with the package."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Packaged:
    """A data set that is there without any folder.

    name: of its folder in storage, where it is written the first time.
    tables: from the numbers of held-out queries of validation and test, and the seed of the split.
    files: names of these tables, which are its attributes; the last one that is written says that all are there.
    """

    name: str
    tables: Callable[[int, int, int], Any]
    files: tuple[str, ...]
