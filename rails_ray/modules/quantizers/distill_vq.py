"""Distill-VQ: codes learn to rank items as the vectors do.

    L = weight cross-entropy(softmax(<q, x> / tau), softmax(<q, x~> / tau))

with x~ straight-through; nothing else moves codebooks.

Source: Xiao et al., Distill-VQ: Learning Retrieval Oriented Vector Quantization by Distilling Knowledge from Dense
Embeddings (arXiv 2204.00185), ListNet.
Differs from the source: the teacher's items are those of the batch, not its top k of the corpus.

Axes: B queries, X items, D numbers of an item.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.losses.quantization import distillation, mean_product
from rails_ray.modules.quantizers.learned import LearnedQuantizer, Matched, Quantized, check_numbers
from rails_ray.modules.quantizers.product import ProductQuantizer


@dataclass(frozen=True, kw_only=True)
class DistillVqConfig:
    """
    Args:
        tau: temperature of a codeword's probability, above 0.
        distillation_weight: weight of the cross-entropy, at least 0.
    """

    kind: Literal["distill_vq"] = "distill_vq"
    tau: float = 0.01
    distillation_weight: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self.tau, distillation_weight=self.distillation_weight)

    def begin(self, start: ProductQuantizer) -> LearnedQuantizer:
        """The contract of `Method`."""
        return LearnedQuantizer(start, tau=self.tau)

    def compared(self, items: Quantized) -> Float[Tensor, "X D"]:
        """The contract of `Method`."""
        return items.vectors

    def loss(self, matched: Matched) -> Float[Tensor, " B"]:
        """The contract of `Method`."""
        teacher = mean_product(matched.query, matched.vectors.detach()) / matched.tau
        student = mean_product(matched.query, matched.read_back) / matched.tau
        return self.distillation_weight * distillation(teacher, student, matched.roles.is_hidden)
