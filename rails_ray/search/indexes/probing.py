"""How an index of FAISS is asked: how much of it a search looks at, and a batch of queries.

Axes: B queries, n places of a list, d width of a vector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rails_ray.search.spec import SearchResult, SearchSpec

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Probing:
    """Search-time parameters. A kind of index reads the field that names it.

    Args:
        nprobe: lists that `ivf` scans for a query; None for the square root of their number.
        ef_search: items in the beam of `hnsw`; None for 64. It grows to the number of items asked for, or, with a
            threshold, that reach it.
    """

    nprobe: int | None = None
    ef_search: int | None = None

    def __post_init__(self) -> None:
        for name, number in (("nprobe", self.nprobe), ("ef_search", self.ef_search)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")


class Only(NamedTuple):
    """The rows that one call of FAISS may answer with: its selector, and how many they are."""

    selector: Any
    num_rows: int


class Asked(NamedTuple):
    """A batch of queries [B, d], ready to be asked for its best items.

    best: from some of its lines, n >= 1 and the rows that may be found (None for all), the scores and rows of the n
        best items that are looked at, as FAISS gives them: scores descending, row -1 at places that hold none.
    parameters: FAISS's search parameters, for a copy of the index elsewhere.
    num_scored: items that are looked at, of each query; None for those that `best` returns.
    is_exhaustive: whether every item is looked at.
    scan: from some of its lines and what is wanted of these, the answer by scoring every item, in place of very long
        lists; None for a kind without it.
    """

    queries: Floats
    best: Callable[[Rows, int, Only | None], tuple[Floats, Rows]]
    parameters: Any
    num_scored: Rows | None
    is_exhaustive: bool
    scan: Callable[[Rows, SearchSpec], SearchResult] | None = None
