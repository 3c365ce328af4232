"""Distillation: the softmax of the estimates beside the softmax of the heavy ranker's own scores.

    L_q = - sum_i softmax_i(R(., q) / (sigma T)) log softmax_i(R~(q, .) / T)

Source: Hinton et al., Distilling the Knowledge in a Neural Network, Equation 1, without their T^2.
Differs from RBE, Appendix C, whose loss is `top_share`: that one is as low for a softmax on one of the K best items as
for one on all of them, so that training forgets the others.

Axes: B queries, X items.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def distilled(
    estimated: Float[Tensor, "B X"], relevance: Float[Tensor, "B X"], temperature: float
) -> Float[Tensor, " B"]:
    """The loss of each query, in nats.

    Args:
        estimated: R~ in units of sigma.
        relevance: R in units of sigma. An item whose relevance is NaN takes no part.
        temperature: T, above 0.
    """
    is_known = ~relevance.isnan()
    wanted = (relevance / temperature).masked_fill(~is_known, -torch.inf).softmax(dim=1)
    found = (estimated / temperature).masked_fill(~is_known, -torch.inf).log_softmax(dim=1)
    return -torch.where(is_known, wanted * found, 0.0).sum(dim=1)
