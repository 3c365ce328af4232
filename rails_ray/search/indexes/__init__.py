"""Indexes: structures over items that find candidates by inner product, or by a sum of look-ups.

| member     | what it is                                                                             |
|------------|----------------------------------------------------------------------------------------|
| `flat`     | every vector, scanned in blocks: always exact                                          |
| `lookup`   | every code, scanned in blocks: SOLAR's full score, asymmetric distance; always exact   |
| `inverted` | SOLAR, Figure 2: the items of each bucket; sums over a query's best buckets            |
| FAISS      | `faiss_index`, made by `faiss_building`: vectors in 32, 16 or 8 bits, of three kinds   |
| - flat     | every vector, scanned: exact in 32 bits, with a bound of what rounding hides in fewer  |
| - `ivf`    | vectors in lists by their nearest centroids; a query scans the `nprobe` nearest lists  |
| - `hnsw`   | a graph of near items, walked with a beam of `ef_search`; always on the CPU            |
|            | `faiss_on_gpu`: their copies on a GPU, or why there is none                            |

`lookup` has the contract of `Index` with tables [B, M, L] in place of vectors.
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from rails_ray.schema.search_params import SearchParams
from rails_ray.search.spec import SearchResult, SearchSpec


@runtime_checkable
class Index(Protocol):
    """The vectors with the largest inner product with each query: k of them, or all that reach a threshold."""

    @property
    def is_exact(self) -> bool:
        """Return whether no better item can have been missed."""

    def search(self, queries: Float[Tensor, "B d"], spec: SearchSpec) -> SearchResult:
        """Search for each query, inner products as scores.

        Raises:
            ValueError: unless there is a threshold for each query, or none.
        """


@runtime_checkable
class VectorIndex(Index, Protocol):
    """An index of vectors, which a search may look at in part."""

    @property
    def knows_scores(self) -> bool:
        """Return whether its scores are the inner products, but for what float32 rounds in computing them."""

    @property
    def error(self) -> float:
        """How far the score of a query of length 1 may be from its inner product with the vector that was indexed."""

    def search(
        self, queries: Float[Tensor, "B d"], spec: SearchSpec, params: SearchParams | None = None
    ) -> SearchResult:
        """The contract of `Index`.

        Args:
            params: how much to look at; by default what the kind of index takes.

        Raises:
            ValueError: also if the index has less than that.
        """

    def num_products(self, num_left: int, num_queries: int, params: SearchParams) -> float:
        """Estimate the time of a search for one query, in inner products with a vector in the cache.

        Args:
            num_left: items that a mask leaves.
            num_queries: of the batch.
        """
