"""Objectives that a training step minimises over the scores of a batch: one of the losses, with what it has to learn
beside them.

Only `Contrastive` can also be computed block by block, over more items than fit in memory.

| member              | paper                                                                        |
|---------------------|------------------------------------------------------------------------------|
| `Contrastive`       | RAILS, Equation 4; pEBR, Section 2.4 (ExpNCE, BetaNCE) and 2.2.2 (pair-wise) |
| `Pointwise`         | pEBR, Section 2.2.1                                                          |
| `MaximumLikelihood` | pEBR, Section 2.3                                                            |

What an objective learns is thrown away when training ends: no score and no cut-off reads it.

Axes: B queries, N items of the batch, P_Q query components, d width of a component.
"""

import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.losses import streaming_log_sum_exp as streaming
from rails_ray.modules.losses.maximum_likelihood import BetaParameters, maximum_likelihood
from rails_ray.modules.losses.negatives import Roles
from rails_ray.modules.losses.pointwise import pointwise
from rails_ray.modules.losses.sampled_softmax import sampled_softmax
from rails_ray.modules.similarities.states import QueryState

INITIAL_OFFSET = 10.0  # -log(1 - c) of a usual mass c; training moves it
LARGEST_COUNT = 1e3  # largest alpha and beta: a score then deviates by .03, and no density grows without bound


@runtime_checkable
class Objective(Protocol):
    """Turns the scores of a batch into its loss."""

    def __call__(self, scores: Float[Tensor, "B N"], query: QueryState, roles: Roles) -> Float[Tensor, " B"]:
        """The loss of each query, in nats."""


class Contrastive(nn.Module):
    """Sampled softmax over the logit, plus some of the point-wise loss, which gives the logit its level.

    Args:
        logit: the logit, with tau_q (`beta_nce`, `exp_nce`) or with one temperature (the pair-wise baseline).
        pointwise_weight: weight of the point-wise loss; 0 for none.
    """

    def __init__(self, logit: ScoreLogit, pointwise_weight: float) -> None:
        super().__init__()
        self.logit = logit
        self.pointwise_weight = pointwise_weight
        self.offset = nn.Parameter(torch.tensor(INITIAL_OFFSET), requires_grad=pointwise_weight > 0)

    def forward(self, scores: Tensor, query: QueryState, roles: Roles) -> Tensor:
        logits = self.logit(scores, query.temperature)
        loss = sampled_softmax(roles.weighted(logits), roles.positive, roles.is_hidden)
        if self.pointwise_weight:
            beside = pointwise(logits, roles.is_relevant, roles.is_negative, self.offset)
            loss = loss + self.pointwise_weight * beside
        return loss

    def sums(self, scores: Float[Tensor, "B N"], query: QueryState, roles: Roles) -> streaming.Sums:
        """Return what the loss needs of one block of items."""
        logits = self.logit(scores, query.temperature)
        return streaming.sums_of(logits, roles, self.offset if self.pointwise_weight else None)

    def loss_of_sums(self, sums: streaming.Sums) -> Float[Tensor, " B"]:
        """The loss of each query, from the sums of all blocks."""
        loss = streaming.softmax_loss(sums)
        if self.pointwise_weight:
            loss = loss + self.pointwise_weight * streaming.pointwise_loss(sums)
        return loss


class Pointwise(nn.Module):
    """The point-wise loss alone.

    Args:
        logit: a logit with one temperature, as tau_q has no level of its own to learn here.
    """

    def __init__(self, logit: ScoreLogit) -> None:
        super().__init__()
        self.logit = logit
        self.offset = nn.Parameter(torch.tensor(0.0))

    def forward(self, scores: Tensor, query: QueryState, roles: Roles) -> Tensor:
        return pointwise(self.logit(scores, query.temperature), roles.is_relevant, roles.is_negative, self.offset)


class MaximumLikelihood(nn.Module):
    """Beta densities of relevant and irrelevant scores, from heads on the query's components.

    Args:
        width: P_Q * d, all components of a query.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = nn.Linear(width, 4)

    def forward(self, scores: Tensor, query: QueryState, roles: Roles) -> Tensor:
        shares = torch.sigmoid(self.heads(query.components.flatten(start_dim=1)))
        counts = torch.exp(shares * math.log(LARGEST_COUNT)).unbind(dim=1)  # in [1, LARGEST_COUNT]
        relevant, irrelevant = BetaParameters(*counts[:2]), BetaParameters(*counts[2:])
        return maximum_likelihood(scores, roles.is_relevant, roles.is_negative, relevant, irrelevant)
