"""Indexes: structures over item vectors that find candidates by inner product.

| member | what it is                                     |
|--------|------------------------------------------------|
| `flat` | every vector, scanned in blocks: always exact  |
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from rails_ray.top_k import Exclusions, TopK


@runtime_checkable
class Index(Protocol):
    """The k vectors with the largest inner product with each query."""

    @property
    def is_exact(self) -> bool:
        """Whether no better item can have been missed."""

    def search(self, queries: Float[Tensor, "B d"], k: int, exclude: Exclusions | None = None) -> TopK:
        """Inner products descending; -inf at places for which exclusion left no item."""
