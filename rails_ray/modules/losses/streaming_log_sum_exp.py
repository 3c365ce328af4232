"""A sampled softmax, and the point-wise loss beside it, over items that come block by block.

    log sum_j exp(l_j) = m + log sum_blocks exp(l_block - m),   m = max over blocks,   l_block = log-sum-exp of a block

Both losses need only sums over a block's items, one logarithmic and up to four plain, so that no more than a block of
logits is ever in memory. The derivative of the whole by a block's part is exp(l_block - l) and 1.

Source: MoPQ, Section 3.2 and Equation 6, over more items than fit.

Axes: B queries, N items of a block, S plain sums: 1, or 4 with the point-wise loss.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.losses.negatives import Roles


class Sums(NamedTuple):
    """Sums over the items of each query.

    log_negatives: log of the sum of exp(logit) over negatives; -inf if there are none.
    plain: logit of the positive; for the point-wise loss also softplus(-(s + b)) over relevant items, how many these
        are, and softplus(s + b) over negatives.
    """

    log_negatives: Float[Tensor, " B"]
    plain: Float[Tensor, "B S"]


def sums_of(logits: Float[Tensor, "B N"], roles: Roles, offset: Float[Tensor, ""] | None) -> Sums:
    """The sums over a block.

    Args:
        offset: b of the point-wise loss; None without that loss.
    """
    columns = torch.arange(logits.shape[1], device=logits.device)
    is_positive = columns == roles.positive.unsqueeze(1)
    plain = [logits * is_positive]
    if offset is not None:
        missed, wrong = F.softplus(-logits - offset), F.softplus(logits + offset)
        plain += [missed * roles.is_relevant, roles.is_relevant.to(logits.dtype), wrong * roles.is_negative]
    negatives = logits.masked_fill(~roles.is_negative, -torch.inf)
    return Sums(log_sum_exp(negatives), torch.stack([part.sum(dim=1) for part in plain], dim=1))


def log_sum_exp(logits: Float[Tensor, "B N"]) -> Float[Tensor, " B"]:
    """Like torch's, but -inf with a gradient of 0 where a line is empty or -inf throughout: torch's has NaN there."""
    if not logits.shape[1]:
        return logits.sum(dim=1) - torch.inf
    highest = logits.detach().amax(dim=1)
    shift = highest.masked_fill(highest == -torch.inf, 0.0)
    total = (logits - shift.unsqueeze(1)).exp().sum(dim=1)
    is_none = total == 0
    return torch.where(is_none, -torch.inf, total.masked_fill(is_none, 1.0).log() + shift)


def merged(one: Sums, other: Sums) -> Sums:
    """The sums over the items of both."""
    return Sums(torch.logaddexp(one.log_negatives, other.log_negatives), one.plain + other.plain)


def slopes(part: Sums, whole: Sums, slope_of_whole: Sums) -> Sums:
    """The derivative of a loss by the sums of one block, from its derivative by the sums of all blocks."""
    share = (part.log_negatives - whole.log_negatives).exp()
    share = torch.where(part.log_negatives == -torch.inf, 0.0, share)  # 0 / 0 where there are no negatives at all
    return Sums(slope_of_whole.log_negatives * share, slope_of_whole.plain)


def softmax_loss(sums: Sums) -> Float[Tensor, " B"]:
    """The sampled softmax of each query, in nats."""
    positive = sums.plain[:, 0]
    return F.softplus(sums.log_negatives - positive)  # log(exp(negatives) + exp(positive)) - positive


def pointwise_loss(sums: Sums) -> Float[Tensor, " B"]:
    """The point-wise loss of each query, in nats."""
    _, missed, num_relevant, wrong = sums.plain.unbind(dim=1)
    return missed / num_relevant + wrong
