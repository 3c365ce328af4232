"""Matching-oriented product quantization: the multinoulli contrastive loss (MCL).

    L = - weight sum_m log P_m(code_m(x) | x)  -  log softmax_x(<q, x~> / tau)          both factors of Equation 2

with x~ straight-through.

Source: MoPQ, Section 3.1, Equation 2 and Section 4.1 (selections).
Differs from the source: the authors' code leaves the first factor out and adds a softmax over vectors; here its weight
says.

Axes: B queries, X items, D numbers of an item.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from rails_ray.losses.quantization import likelihood
from rails_ray.quantizers.learned import LearnedQuantizer, Matched, Quantized, check_numbers
from rails_ray.quantizers.product import ProductQuantizer, Selection


@dataclass(frozen=True, kw_only=True)
class MopqConfig:
    """
    Args:
        selection: how a codeword is chosen.
        tau: temperature of a codeword's probability, above 0.
        codeword_weight: weight of the first factor, at least 0.
        is_balanced: whether training shares the items of a batch out evenly to the codewords.
    """

    kind: Literal["mopq"] = "mopq"
    selection: Selection = "l2"
    tau: float = 0.1
    codeword_weight: float = 0.01
    is_balanced: bool = False

    def __post_init__(self) -> None:
        check_numbers(self.tau, codeword_weight=self.codeword_weight)

    def begin(self, start: ProductQuantizer) -> LearnedQuantizer:
        """The contract of `Method`."""
        return LearnedQuantizer(start, self.selection, tau=self.tau, is_balanced=self.is_balanced)

    def compared(self, items: Quantized) -> Float[Tensor, "X D"]:
        """The contract of `Method`."""
        return items.assigned.read_back

    def loss(self, matched: Matched) -> Float[Tensor, " B"]:
        """The contract of `Method`."""
        assigned = matched.items.assigned
        return self.codeword_weight * likelihood(assigned.log_probabilities, assigned.codes)[matched.roles.positive]
