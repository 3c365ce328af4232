"""Maximum likelihood: relevant and irrelevant scores each follow a Beta distribution of the query's own.

    L_q = -mean_{x+} log f_q(score) - mean_{x-} log h_q(score)
    f_q, h_q = Beta(alpha, beta) of z = (1 + score) / 2, as densities of the score

Source: pEBR, Section 2.3, with the Beta densities of Section 2.4.2.
Differs from the source: means in place of sums, so that many irrelevant items do not drown a few relevant ones; z is
clamped away from 0 and 1, where densities have no logarithm; the Beta density's exponents are alpha - 1 and beta - 1
throughout (Section 2.4.2 drops the -1 where it forms the ratio).

Axes: B queries, N items of the batch.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rails_ray.modules.losses.beta_nce import SMALLEST_Z


class BetaParameters(NamedTuple):
    """alpha and beta, above 0, of each query."""

    alpha: Float[Tensor, " B"]
    beta: Float[Tensor, " B"]


def beta_log_density(scores: Float[Tensor, "B N"], parameters: BetaParameters) -> Float[Tensor, "B N"]:
    """Natural logarithm of the density of scores in [-1, 1]."""
    alpha, beta = (parameter.unsqueeze(1) for parameter in parameters)
    z = ((1 + scores) / 2).clamp(SMALLEST_Z, 1 - SMALLEST_Z)
    scale = torch.lgamma(alpha + beta) - torch.lgamma(alpha) - torch.lgamma(beta) - math.log(2)
    return scale + (alpha - 1) * z.log() + (beta - 1) * torch.log1p(-z)


def maximum_likelihood(
    scores: Float[Tensor, "B N"],
    is_relevant: Bool[Tensor, "B N"],
    is_negative: Bool[Tensor, "B N"],
    relevant: BetaParameters,
    irrelevant: BetaParameters,
) -> Float[Tensor, " B"]:
    """The loss of each query, in nats; one that has no negative has no second term.

    Args:
        is_relevant: the relevant items, at least one in each line.
        is_negative: the negatives; an item that is neither counts for nothing.
    """
    own = (beta_log_density(scores, relevant) * is_relevant).sum(dim=1) / is_relevant.sum(dim=1)
    others = (beta_log_density(scores, irrelevant) * is_negative).sum(dim=1)
    return -(own + others / is_negative.sum(dim=1).clamp(min=1))
