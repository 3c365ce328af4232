"""Queries that are vectors, in one array from the caller to the index.

Axes: B queries, D width.
"""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rails_ray.schema.queries import WIDEST, QueryInput
from rails_ray.schema.requests import SearchRequest


class VectorQueries(Sequence[QueryInput]):
    """Queries that are vectors and nothing else, in one array [B, D] of float32."""

    def __init__(self, array: NDArray[np.float32]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, number: int) -> QueryInput: ...

    @overload
    def __getitem__(self, number: slice) -> "VectorQueries": ...

    def __getitem__(self, number: int | slice) -> "QueryInput | VectorQueries":
        if isinstance(number, slice):
            return VectorQueries(self.array[number])
        return QueryInput(embedding=self.array[number].tolist())

    @classmethod
    def of(cls, queries: Sequence[QueryInput]) -> "VectorQueries | None":
        """The vectors of a request's queries, whatever else they say; None if not all are vectors of one width."""
        if isinstance(queries, cls):
            return queries
        vectors = [query.embedding for query in queries]
        width = len(vectors[0] or ()) if vectors else 0
        if not width or any(one is None or len(one) != width for one in vectors):
            return None
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
            return cls(np.array(vectors, np.float32))

    @classmethod
    def given(cls, queries: Any) -> "VectorQueries | None":
        """An array or tensor [B, D] of finite numbers of at least one query; None for anything else."""
        if not hasattr(queries, "ndim") or queries.ndim != 2 or not 0 < queries.shape[1] <= WIDEST or not len(queries):
            return None
        array = np.asarray(queries.detach().cpu() if hasattr(queries, "detach") else queries)
        if array.dtype.kind not in "fiu":
            return None
        with np.errstate(over="ignore"):
            array = array.astype(np.float32, copy=False)
        return cls(array) if np.isfinite(array).all() else None


class VectorSearch(SearchRequest):
    """A search whose queries are vectors in one array."""

    queries: Any  # `VectorQueries`
