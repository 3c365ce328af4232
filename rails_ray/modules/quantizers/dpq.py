"""Differentiable product quantization: keys choose, values are read back.

    code_m(x) = argmax_l <y_m, k_ml> + b_ml,    L = - log softmax_x(<q, x~> / tau) + weight |x - x~|^2

with x~ straight-through.

Source: Chen et al., Differentiable Product Quantization for End-to-End Embedding Compression (2020), DPQ-SX.
Differs from the source: keys begin as the selectors of nearest codewords, with their biases, rather than at random; the
term of the reconstruction is MoPQ's, Section 4.1.

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
class DpqConfig:
    """
    Args:
        tau: temperature of a codeword's probability, above 0.
        reconstruction_weight: weight of |x - x~|^2, at least 0.
    """

    kind: Literal["dpq"] = "dpq"
    tau: float = 0.003
    reconstruction_weight: float = 0.1

    def __post_init__(self) -> None:
        check_numbers(self.tau, reconstruction_weight=self.reconstruction_weight)

    def begin(self, start: ProductQuantizer) -> LearnedQuantizer:
        """The contract of `Method`."""
        return LearnedQuantizer(start, tau=self.tau, has_own_selectors=True)

    def compared(self, items: Quantized) -> Float[Tensor, "X D"]:
        """The contract of `Method`."""
        return items.assigned.read_back

    def loss(self, matched: Matched) -> Float[Tensor, " B"]:
        """The contract of `Method`."""
        loss = reconstruction(matched.items.vectors, matched.items.assigned.read_back)
        return self.reconstruction_weight * loss[matched.roles.positive]
