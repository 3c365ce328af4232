"""Dot product of two embeddings; the cosine if both have length 1.

    score(q, x) = <f(q), g(x)>

This is a mixture with P_Q = P_X = 1, which leaves nothing to gate.

Axes: B queries, X items, C candidates.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.kernels.products import inner_products
from rails_ray.modules.similarities import Scored
from rails_ray.modules.similarities.states import ItemState, QueryState


@dataclass(frozen=True, kw_only=True)
class DotProductConfig:
    """A dot product.

    Args:
        temperature: tau of the training logit score / tau, above 0.
    """

    kind: Literal["dot_product"] = "dot_product"
    temperature: float = 0.05

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")


class DotProduct(nn.Module):
    """The inner product of the only query component and the only item component.

    Args:
        has_bounded_vectors: whether neither is longer than 1, so that it is in [-1, 1].
    """

    num_components = (1, 1)

    def __init__(self, config: DotProductConfig, *, has_bounded_vectors: bool = True) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.has_bounded_vectors = has_bounded_vectors

    def forward(self, query: QueryState, items: ItemState) -> Scored:
        """Scores of each query against all items [X], or against its own candidates [B C], stored in any dtype."""
        f = query.components[:, 0]
        g = items.components[..., 0, :].to(f.dtype)
        if g.dim() == 2:
            return Scored(inner_products(f, g), None)
        return Scored(torch.einsum("bd,bcd->bc", f, g), None)

    def numbers_per_pair(self, query: QueryState, *, is_shared: bool) -> int:
        """The contract of `Similarity`."""
        return 1

    def training_scores(self, query: QueryState, items: ItemState) -> Float[Tensor, "B X"]:
        """The contract of `Similarity`."""
        return self.forward(query, items).scores

    @torch.no_grad()
    def scores(
        self, query: QueryState, items: ItemState, floor: Float[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B X"]:
        """The contract of `Scorer`; a product costs less than asking whether it is needed."""
        return self.forward(query, items).scores

    def prepared(self) -> "DotProduct":
        """The contract of `Similarity`: there is nothing to prepare."""
        return self
