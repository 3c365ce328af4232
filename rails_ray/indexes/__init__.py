"""Indexes: structures over items that find candidates by inner product, or by a sum of look-ups.

| member     | what it is                                                                             |
|------------|----------------------------------------------------------------------------------------|
| `flat`     | every vector, scanned in blocks: always exact                                          |
| `lookup`   | every code, scanned in blocks: SOLAR's full score, asymmetric distance; always exact   |
| `inverted` | SOLAR, Figure 2: the items of each bucket; sums over a query's best buckets            |

`lookup` has the contract of `Index` with tables [B, M, L] in place of vectors.
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from rails_ray.wanted import Found, Wanted


@runtime_checkable
class Index(Protocol):
    """The vectors with the largest inner product with each query: k of them, or all that reach a threshold."""

    @property
    def is_exact(self) -> bool:
        """Whether no better item can have been missed."""

    def search(self, queries: Float[Tensor, "B d"], wanted: Wanted) -> Found:
        """What is wanted of each query, inner products as scores.

        Raises:
            ValueError: unless there is a threshold for each query, or none.
        """
