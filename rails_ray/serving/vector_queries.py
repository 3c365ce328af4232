"""Queries that are vectors, in one array from the caller to the index.

Axes: B queries, D width.
"""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import field_serializer

from rails_ray.schema.queries import WIDEST, QueryInput
from rails_ray.schema.requests import SearchRequest

NUMBERS = {float, int}  # types of JSON's numbers; a boolean is none


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
    def read(cls, queries: Any) -> "VectorQueries | None":
        """The queries of a JSON body, each an object with a vector of one width and nothing else; None for anything
        else, which `SearchRequest` reads or refuses."""
        if isinstance(queries, cls):
            return queries
        if not isinstance(queries, list):
            return None
        vectors = []
        for query in queries:
            vector = query.get("embedding") if isinstance(query, dict) and len(query) == 1 else None
            if not isinstance(vector, list) or not NUMBERS.issuperset(map(type, vector)):
                return None
            vectors.append(vector)
        if not vectors or any(len(vector) != len(vectors[0]) for vector in vectors):
            return None
        try:
            return cls.given(np.array(vectors, np.float64))
        except OverflowError:  # an integer of more than 308 digits
            return None

    @classmethod
    def joined(cls, parts: Sequence[Sequence[QueryInput]]) -> Sequence[QueryInput]:
        """The queries of several requests: one array where each is an array of the same width."""
        arrays = [part.array for part in parts if isinstance(part, cls)]
        if len(arrays) == len(parts) and len({array.shape[1] for array in arrays}) == 1:
            return cls(np.concatenate(arrays))
        return [query for part in parts for query in part]

    @classmethod
    def given(cls, queries: Any) -> "VectorQueries | None":
        """An array or tensor [B, D] of finite numbers of at least one query; None for anything else.

        Raises:
            ValueError: if some are masked.
        """
        if not hasattr(queries, "ndim") or queries.ndim != 2 or not 0 < queries.shape[1] <= WIDEST or not len(queries):
            return None
        if isinstance(getattr(queries, "mask", None), np.ndarray):
            raise ValueError("vectors must be arrays or lists of numbers, got some that are masked")
        if hasattr(queries, "detach"):
            queries = queries.detach().cpu()
            queries = queries.float() if queries.is_floating_point() else queries
        array = np.asarray(queries)
        if array.dtype.kind not in "fiu":
            return None
        with np.errstate(over="ignore"):
            array = array.astype(np.float32, copy=False)
        return cls(array) if np.isfinite(array).all() else None


class VectorSearch(SearchRequest):
    """A search whose queries are vectors in one array."""

    queries: Any  # `VectorQueries`

    @field_serializer("queries")
    def _listed(self, queries: Sequence[QueryInput]) -> list[dict[str, Any]]:
        return [query.model_dump(exclude_defaults=True) for query in queries]


def search_of(fields: Any) -> SearchRequest:
    """The search that a body asks for, its queries in one array where all are vectors and say nothing else.

    Raises:
        ValidationError: if the body is none.
    """
    vectors = VectorQueries.read(fields.get("queries")) if isinstance(fields, dict) else None
    if vectors is None:
        return SearchRequest.model_validate(fields)
    return VectorSearch.model_validate({**fields, "queries": vectors})
