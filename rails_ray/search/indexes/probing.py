"""The contract of a kind of FAISS index: its config makes and recognises it, and its search asks it.

Axes: B queries, n places of a list, d width of a vector.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rails_ray.kernels.faiss_library import faiss_library
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.grown_lists import Growth
from rails_ray.search.spec import SearchResult, SearchSpec

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


class Only(NamedTuple):
    """The rows that one call of FAISS may answer with: which they are [X], FAISS's selector of them, and how many."""

    is_there: NDArray[np.bool_]
    selector: Any
    num_rows: int

    @classmethod
    def of(cls, is_there: NDArray[np.bool_]) -> "Only":
        selector = faiss_library().IDSelectorBitmap(np.packbits(is_there, bitorder="little"))
        return cls(is_there, selector, int(np.count_nonzero(is_there)))


class PreparedQueries(NamedTuple):
    """A batch of queries [B, d], ready to be asked for its best items.

    best: from some of its lines, n >= 1 and the rows that may be found (None for all), the scores and rows of the n
        best items that are looked at, as FAISS gives them: scores descending, row -1 at places that hold none.
    parameters: FAISS's search parameters, for a copy of the index elsewhere.
    num_scored: items that are looked at, of each query; None for those that `best` returns.
    is_exhaustive: whether every item is looked at.
    scan: from some of its lines and what is wanted of these, the answer by scoring every item, in place of very long
        lists; None for a kind without it.
    wider: gives the queries with more to look at, for those that find too little; None where a request says how much
        is looked at, or all is.
    """

    queries: Floats
    best: Callable[[Rows, int, Only | None], tuple[Floats, Rows]]
    parameters: Any
    num_scored: Rows | None
    is_exhaustive: bool
    scan: Callable[[Rows, SearchSpec], SearchResult] | None = None
    wider: "Callable[[], PreparedQueries] | None" = None


@runtime_checkable
class KindSearch(Protocol):
    """A trained index of one kind, as it is searched.

    name: the kind.
    growth: how a list that does not hold the answer grows.
    runs_on_gpu: whether a GPU can have a copy of it (`faiss_on_gpu`).
    """

    name: str
    growth: Growth
    runs_on_gpu: bool

    def num_products(self, num_left: int, params: SearchParams) -> float:
        """As `VectorIndex` has it, for any number of queries."""

    def ask(self, queries: Floats, params: SearchParams) -> PreparedQueries:
        """A batch of queries [B, d], ready to be asked for its best items.

        Raises:
            ValueError: if the index has less than `params` asks for.
        """


@runtime_checkable
class KindConfig(Protocol):
    """The config of one kind."""

    kind: str

    def check(self, num_items: int, num_points: int) -> None:
        """
        Args:
            num_items, num_points: as many items as an index is to hold, and as its sample will have.

        Raises:
            ValueError: if such an index cannot be fitted.
        """

    def untrained(self, width: int, num_items: int, num_points: int, seed: int) -> Any:
        """FAISS's index, which is to be trained by the sample and filled."""

    @staticmethod
    def opened(index: Any) -> KindSearch | None:
        """The search of an index of FAISS; None if it is of another kind."""
