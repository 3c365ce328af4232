"""ExpNCE: a sampled softmax whose logit makes relevant scores follow a truncated exponential distribution.

    logit = (score - 1) / tau_q

so that exp(logit) is the density ratio of that distribution to the uniform one. On the sphere it is a von Mises-Fisher
distribution with kappa = 1 / tau_q.

Source: pEBR, Section 2.4.1. `cutoffs.distributions` inverts the resulting distribution.
Differs from the source: 1 / tau_q is subtracted, which the softmax cancels. The point-wise loss, with one offset for
all queries, does not: it can read the level of a logit that ends at 0 for all of them, as BetaNCE's does.

Axes: B queries, X items.
"""

from jaxtyping import Float
from torch import Tensor


def exp_logit(scores: Float[Tensor, "B X"], temperature: Float[Tensor, " B"]) -> Float[Tensor, "B X"]:
    """(score - 1) / tau_q of scores in [-1, 1]."""
    return (scores - 1) / temperature.unsqueeze(1)
