"""Supervised product quantization: queries match soft codewords, which are pulled towards the hard ones.

    L = - log softmax_x(<q, soft(x)> / tau) + weight |soft(x) - hard(x)|^2 + evenness_weight (Gini of mean - mean Gini)

Selectors are trained apart from codewords.

Source: Klein and Wolf, End-to-End Supervised Product Quantization for Image Search and Retrieval (2019).
Differs from the source: a softmax over items in place of classes, and the squared distance of soft and hard codewords
in place of their distances to a class's centre, as in MoPQ's comparison.

Axes: B queries, X items, D numbers of an item.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.losses.quantization import disagreement, evenness
from rails_ray.modules.quantizers.learned import LearnedQuantizer, Matched, Quantized, check_numbers
from rails_ray.modules.quantizers.product import ProductQuantizer


@dataclass(frozen=True, kw_only=True)
class SpqConfig:
    """
    Args:
        tau: temperature of a codeword's probability, above 0.
        disagreement_weight: weight of |soft - hard|^2, at least 0.
        evenness_weight: weight of the two Gini terms, at least 0.
    """

    kind: Literal["spq"] = "spq"
    tau: float = 0.003
    disagreement_weight: float = 0.1
    evenness_weight: float = 0.01

    def __post_init__(self) -> None:
        check_numbers(self.tau, disagreement_weight=self.disagreement_weight, evenness_weight=self.evenness_weight)

    def begin(self, start: ProductQuantizer) -> LearnedQuantizer:
        """The contract of `Method`."""
        return LearnedQuantizer(start, tau=self.tau, has_own_selectors=True)

    def compared(self, items: Quantized) -> Float[Tensor, "X D"]:
        """The contract of `Method`."""
        return items.soft

    def loss(self, matched: Matched) -> Float[Tensor, " B"]:
        """The contract of `Method`."""
        items = matched.items
        apart = disagreement(items.soft, items.assigned.hard)
        evenly = self.evenness_weight * evenness(items.assigned.log_probabilities)
        return self.disagreement_weight * apart[matched.roles.positive] + evenly
