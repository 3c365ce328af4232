"""Deep quantization network: queries match the vectors, and codewords stay near them.

    L = - log softmax_x(<q, x> / tau) + weight |x - x~|^2

Source: Cao et al., Deep Quantization Network for Efficient Image Retrieval (2016), as MoPQ, Section 4.1 has it.
Differs from the source: a softmax over items in place of pairs with cosines of 1 and -1, as in MoPQ's comparison.

Axes: B queries, X items, D numbers of an item.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.losses.quantization import reconstruction
from rails_ray.modules.quantizers.learned import LearnedQuantizer, Matched, Quantized, check_numbers
from rails_ray.modules.quantizers.product import ProductQuantizer


@dataclass(frozen=True, kw_only=True)
class DqnConfig:
    """
    Args:
        reconstruction_weight: weight of |x - x~|^2, at least 0.
    """

    kind: Literal["dqn"] = "dqn"
    reconstruction_weight: float = 0.01

    def __post_init__(self) -> None:
        check_numbers(None, reconstruction_weight=self.reconstruction_weight)

    def begin(self, start: ProductQuantizer) -> LearnedQuantizer:
        """The contract of `Method`."""
        return LearnedQuantizer(start)

    def compared(self, items: Quantized) -> Float[Tensor, "X D"]:
        """The contract of `Method`."""
        return items.vectors

    def loss(self, matched: Matched) -> Float[Tensor, " B"]:
        """The contract of `Method`."""
        loss = reconstruction(matched.items.vectors, matched.items.assigned.read_back)
        return self.reconstruction_weight * loss[matched.roles.positive]
