"""Matching-oriented product quantization: the multinoulli contrastive loss (MCL).

    L = - v sum_m log P_m(code_m(x) | x)  -  log softmax_x(<q, x~> / tau)  -  w log softmax_x(<q, x> / tau)

with x~ straight-through. The first two are the factors of Equation 2, with the weight v of the first; w is 0 there.

Source: MoPQ, Section 3.1, Equation 2 and Section 4.1 (selections).
Differs from the source: the authors' code has v = 0 and w = 1; here the weights say.

Axes: B queries, X items, D numbers of an item.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.losses.quantization import mean_product, negative_log_likelihood
from rails_ray.modules.losses.sampled_softmax import sampled_softmax
from rails_ray.modules.quantizers.learned import LearnedQuantizer, Matched, Quantized, check_numbers
from rails_ray.modules.quantizers.product import ProductQuantizer, Selection


@dataclass(frozen=True, kw_only=True)
class MopqConfig:
    """
    Args:
        selection: how a codeword is chosen.
        tau: temperature of a codeword's probability, above 0.
        codeword_weight: v, at least 0.
        dense_weight: w, at least 0.
        is_balanced: whether training shares the items of a batch out evenly to the codewords.
    """

    kind: Literal["mopq"] = "mopq"
    selection: Selection = "l2"
    tau: float = 0.003
    codeword_weight: float = 0.01
    dense_weight: float = 0.0
    is_balanced: bool = False

    def __post_init__(self) -> None:
        check_numbers(self.tau, codeword_weight=self.codeword_weight, dense_weight=self.dense_weight)

    def begin(self, start: ProductQuantizer) -> LearnedQuantizer:
        """The contract of `Method`."""
        return LearnedQuantizer(start, self.selection, tau=self.tau, is_balanced=self.is_balanced)

    def compared(self, items: Quantized) -> Float[Tensor, "X D"]:
        """The contract of `Method`."""
        return items.assigned.read_back

    def loss(self, matched: Matched) -> Float[Tensor, " B"]:
        """The contract of `Method`."""
        assigned, roles = matched.items.assigned, matched.roles
        loss = (
            self.codeword_weight * negative_log_likelihood(assigned.log_probabilities, assigned.codes)[roles.positive]
        )
        if self.dense_weight:
            logits = mean_product(matched.query, matched.vectors) / matched.tau
            loss = loss + self.dense_weight * sampled_softmax(logits, roles.positive, roles.is_hidden)
        return loss
