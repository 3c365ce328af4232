"""Joint optimisation of query encoding and product quantization: codes stay, centroids move.

    L = - log softmax_x(<q, x~> / tau),    code(x) as fitted before training

Source: Zhan et al., Jointly Optimizing Query Encoder and Product Quantization to Improve Retrieval Performance (arXiv
2108.00644).
Differs from the source: negatives come from the batch, not from the current index's best items.

Axes: B queries, X items, D numbers of an item.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.quantizers.learned import LearnedQuantizer, Matched, Quantized
from rails_ray.modules.quantizers.product import ProductQuantizer


@dataclass(frozen=True, kw_only=True)
class JpqConfig:
    """Codes are fitted once."""

    kind: Literal["jpq"] = "jpq"

    def begin(self, start: ProductQuantizer) -> LearnedQuantizer:
        """The contract of `Method`."""
        return LearnedQuantizer(start, has_fixed_codes=True)

    def compared(self, items: Quantized) -> Float[Tensor, "X D"]:
        """The contract of `Method`."""
        return items.assigned.hard

    def loss(self, matched: Matched) -> Float[Tensor, " B"]:
        """The contract of `Method`."""
        return matched.query.new_zeros(len(matched.query))
