"""Retrieval: the k items of a corpus with the highest score under a learned similarity.

| member        | paper                          | exact                                 |
|---------------|--------------------------------|---------------------------------------|
| `brute_force` | RAILS, Section 3 (baseline)    | always                                |
| `average`     | RAILS, Section 3.3: top-k avg  | only where a mean is its one component |
| `sharded`     | one corpus, several parts      | as its parts are                      |
"""

from typing import Protocol, runtime_checkable

from rails_ray.similarities.states import QueryState
from rails_ray.top_k import Exclusions, TopK


@runtime_checkable
class Retriever(Protocol):
    """A search method bound to a similarity and to the items that it searches."""

    @property
    def is_exact(self) -> bool:
        """Whether an answer always equals that of brute force."""

    def search(self, query: QueryState, k: int, exclude: Exclusions | None = None) -> TopK:
        """Exactly k distinct items per query, scores descending, none of them excluded.

        Raises:
            ValueError: if k is below 1 or above the number of items left after exclusion.
        """
