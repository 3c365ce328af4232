"""Sampled softmax: tell the positive from negatives.

    L_q = -log( exp(phi(q, x+)) / sum_{x in {x+} and N} exp(phi(q, x)) ),   phi = score / tau

Source: RAILS, Equation 4 (first part).

Axes: B queries, N items of the batch, the positives and negatives of all its queries.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def sampled_softmax(
    logits: Float[Tensor, "B N"], positive: Int[Tensor, " B"], is_hidden: Bool[Tensor, "B N"]
) -> Float[Tensor, " B"]:
    """The loss of each query, in nats.

    Args:
        positive: column of each query's positive, which is not hidden.
        is_hidden: items to leave out, because they are relevant to the query too.
    """
    logits = logits.masked_fill(is_hidden, -torch.inf)
    return logits.logsumexp(dim=1) - logits.gather(1, positive.unsqueeze(1)).squeeze(1)


@dataclass(frozen=True)
class ScaledLogit:
    """phi = score / tau, the same for every query: `temperature` (tau_q) is not used and so not trained."""

    tau: float

    def __call__(self, scores: Float[Tensor, "B X"], temperature: Float[Tensor, " B"]) -> Float[Tensor, "B X"]:
        """The contract of `ScoreLogit`."""
        return scores / self.tau
