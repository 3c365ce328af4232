"""Point-wise loss: tell relevant from irrelevant by the logit alone, not by its order.

    L_q = mean_{x+} softplus(-(s + b)) + sum_{x-} softplus(s + b),   s = logit(score, tau_q)

A softmax leaves the level of a query's logits free, because its normaliser cancels it; a cut-off lives on that level.
With s = log z / tau_q the boundary s = -b is log z = -b tau_q, which is where a cut-off of mass c = 1 - exp(-b (1 +
tau_q)), nearly the same for all queries, lies. So a little of this loss beside BetaNCE teaches tau_q where to cut.

Source: pEBR, Section 2.2 (point-wise baseline).
Differs from the source: the printed sign of the negative term is unbounded below; relevant items are averaged, so that
a query with hundreds of them counts as one; the offset b is learned, since log z / tau_q is never positive.

Axes: B queries, N items of the batch.
"""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def pointwise(
    logits: Float[Tensor, "B N"],
    is_relevant: Bool[Tensor, "B N"],
    is_negative: Bool[Tensor, "B N"],
    offset: Float[Tensor, ""],
) -> Float[Tensor, " B"]:
    """The loss of each query, in nats.

    Args:
        is_relevant: the relevant items, at least one in each line.
        is_negative: the negatives; an item that is neither counts for nothing.
        offset: b, the same for all queries.
    """
    shifted = logits + offset
    num_relevant = is_relevant.sum(dim=1)
    missed = (F.softplus(-shifted) * is_relevant).sum(dim=1) / num_relevant
    wrong = (F.softplus(shifted) * is_negative).sum(dim=1)
    return missed + wrong
