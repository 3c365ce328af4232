"""BetaNCE: a sampled softmax whose logit makes relevant scores follow a Beta distribution.

    z = (1 + score) / 2,   logit = log z / tau_q

so that exp(logit) = z^(1 / tau_q), the density ratio of Beta(1 + 1/tau_q, 1) to the uniform distribution.

Source: pEBR, Section 2.4.2. `cutoffs.distributions` inverts the resulting distribution.

Axes: B queries, X items.
"""

from jaxtyping import Float
from torch import Tensor

# Below this z a logit would say more about rounding than about relevance.
SMALLEST_Z = 1e-6


def beta_logit(scores: Float[Tensor, "B X"], temperature: Float[Tensor, " B"]) -> Float[Tensor, "B X"]:
    """log z / tau_q of scores in [-1, 1]."""
    return ((1 + scores) / 2).clamp(min=SMALLEST_Z).log() / temperature.unsqueeze(1)
