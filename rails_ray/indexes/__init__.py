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

from rails_ray.above import Above
from rails_ray.top_k import Exclusions, TopK


@runtime_checkable
class Index(Protocol):
    """The vectors with the largest inner product with each query: k of them, or all that reach a threshold."""

    @property
    def is_exact(self) -> bool:
        """Whether no better item can have been missed."""

    def search(self, queries: Float[Tensor, "B d"], k: int, exclude: Exclusions | None = None) -> TopK:
        """Inner products descending; -inf at places for which exclusion left no item."""

    def search_above(
        self,
        queries: Float[Tensor, "B d"],
        threshold: Float[Tensor, " B"],
        cap: int,
        exclude: Exclusions | None = None,
        at_least: int = 0,
    ) -> Above:
        """All vectors whose inner product is at least the query's threshold, at most the `cap` best of them; where
        fewer than `at_least` reach it, the `at_least` best.

        Raises:
            ValueError: if a threshold is NaN, or unless 0 <= at_least <= cap and cap >= 1.
        """
