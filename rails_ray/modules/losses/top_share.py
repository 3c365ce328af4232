"""Top share: how much of a query's softmax falls on the items that belong to its best.

    L_q = - sum_i softmax_i(R~(q, .)) (2 [R(i, q) >= Q_{1 - K / X}(R(., q))] - 1)

From -1, when all of the softmax lies on the K best items by R, to 1, when none of it does.

Source: RBE, Appendix C.
Differs from the source: it is printed with the other sign, which training would drive the wrong way, and with the
estimate R~ on the left of the quantile's comparison, where its indicator has no gradient and needs no ranker.

Axes: B queries, X items.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def top_share(estimated: Float[Tensor, "B X"], relevance: Float[Tensor, "B X"], num_best: int) -> Float[Tensor, " B"]:
    """The loss of each query.

    Args:
        estimated: R~, logits of the softmax.
        relevance: R. An item whose relevance is NaN takes no part.
        num_best: K. Items level with the K-th best belong to the best.

    Raises:
        ValueError: unless 1 <= num_best <= X.
    """
    if not 1 <= num_best <= relevance.shape[1]:
        raise ValueError(f"num_best must be 1 to {relevance.shape[1]} (the items), got {num_best}")
    is_known = ~relevance.isnan()
    known = relevance.masked_fill(~is_known, -torch.inf)
    least = known.topk(num_best, dim=1).values[:, -1:]
    signs = torch.where(known >= least, 1.0, -1.0)
    share = estimated.masked_fill(~is_known, -torch.inf).softmax(dim=1)
    return -(share * signs).sum(dim=1)
