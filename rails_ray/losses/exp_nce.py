"""ExpNCE: a sampled softmax whose logit makes relevant scores follow a truncated exponential distribution.

    logit = score / tau_q

so that exp(logit) is the density ratio of that distribution to the uniform one; on the sphere it is that of a von
Mises-Fisher distribution with kappa = 1 / tau_q.

Source: pEBR, Section 2.4.1. `cutoffs.distributions` inverts the resulting distribution.

Axes: B queries, X items.
"""

from jaxtyping import Float
from torch import Tensor


def exp_logit(scores: Float[Tensor, "B X"], temperature: Float[Tensor, " B"]) -> Float[Tensor, "B X"]:
    """score / tau_q."""
    return scores / temperature.unsqueeze(1)
