"""Deep visual-semantic quantization: codes change the inner products with queries as little as possible.

    L = - log softmax_x(<q, x> / tau) + weight mean_x <q, x - x~>^2

Source: Cao et al., Deep Visual-Semantic Quantization for Efficient Image Retrieval (2017), Equation 5.
Differs from the source: inner products with the batch's queries in place of those with embeddings of labels, and a
softmax in place of a margin, as in MoPQ's comparison.

Axes: B queries, X items, D numbers of an item.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.losses.quantization import distortion
from rails_ray.modules.quantizers.learned import LearnedQuantizer, Matched, Quantized, check_numbers
from rails_ray.modules.quantizers.product import ProductQuantizer


@dataclass(frozen=True, kw_only=True)
class DvsqConfig:
    """
    Args:
        distortion_weight: weight of the mean square of what codes add to an inner product, at least 0.
    """

    kind: Literal["dvsq"] = "dvsq"
    distortion_weight: float = 10.0

    def __post_init__(self) -> None:
        check_numbers(None, distortion_weight=self.distortion_weight)

    def begin(self, start: ProductQuantizer) -> LearnedQuantizer:
        """The contract of `Method`."""
        return LearnedQuantizer(start)

    def compared(self, items: Quantized) -> Float[Tensor, "X D"]:
        """The contract of `Method`."""
        return items.vectors

    def loss(self, matched: Matched) -> Float[Tensor, " B"]:
        """The contract of `Method`."""
        return self.distortion_weight * distortion(matched.query, matched.vectors, matched.read_back)
