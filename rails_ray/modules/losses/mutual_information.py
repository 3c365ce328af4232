"""Mutual-information loss: use every pair of components over the batch, and few of them for each pair (q, x).

    L_MI = -H(E[pi]) + E[H(pi | q, x)]

Source: RAILS, Equation 3. The minimum is -log P: all pairs of components used equally, each gate one-hot.

Axes: B pairs of query and positive, P pairs of components.
"""

from jaxtyping import Float
from torch import Tensor, special

SMALLEST_GATE = 1e-12


def mutual_information(
    gates: Float[Tensor, "B P"],
    mean_gates: Float[Tensor, " P"],
    weight: float,
    weights: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, ""]:
    """L_MI in nats, in [-log P, 0] over the whole batch.

    Args:
        mean_gates: E[pi] over the whole batch; `gates` may be one worker's part of it. It comes separately because
            the entropy of a mean is not the mean of entropies.
        weight: weight of a pair in the mean over the whole batch.
        weights: what each pair counts in it, of mean 1 over the whole batch; None for 1.
    """
    entropies = _entropy(gates) if weights is None else _entropy(gates) * weights
    return weight * entropies.sum() - _entropy(mean_gates)


def _entropy(probabilities: Float[Tensor, "*B P"]) -> Float[Tensor, "*B"]:
    # At 0 the slope is infinite: the clamp keeps a gate that has closed from turning gradients to NaN.
    terms: Tensor = special.entr(probabilities.clamp(min=SMALLEST_GATE))
    return terms.sum(dim=-1)
