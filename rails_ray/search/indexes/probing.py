"""How an index of FAISS is asked: how much of it a search looks at, and a batch of queries.

Axes: B queries, n places of a list, d width of a vector.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rails_ray.search.spec import SearchResult, SearchSpec

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


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
