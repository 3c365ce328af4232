"""Choose the default mass of `MassCutoff` on held-out queries.

    c* = argmax_c mean_q F1(items kept with mass c, relevant items of q)

The normaliser of the softmax cancels in BetaNCE, so training leaves the scale of the distribution free: which mass
keeps the right number of items is a matter of measuring.

Axes: B queries, k results.
"""

import numpy as np
from numpy.typing import NDArray

from rails_ray.cutoffs.policies import MassCutoff, cut

# Masses 1 - 10^-x, even in x from .5 to 1 - 1e-12: the share left out is what spaces thresholds evenly.
CANDIDATE_MASSES = 1 - 10 ** -np.linspace(np.log10(2), 12, 60)


def mean_f1(num_kept: NDArray[np.int64], is_relevant: NDArray[np.bool_], num_relevant: NDArray[np.int64]) -> float:
    """The mean over queries of F1 = 2 * hits / (kept + relevant).

    Args:
        num_kept: items kept from the start of each list [B].
        is_relevant: whether each item of each list is relevant [B, k].
        num_relevant: relevant items of each query in the corpus [B], at least 1.
    """
    kept = np.arange(is_relevant.shape[1]) < num_kept[:, None]
    hits = (kept & is_relevant).sum(axis=1)
    return float((2 * hits / (num_kept + num_relevant)).mean())


def best_mass(
    scores: NDArray[np.floating],
    is_relevant: NDArray[np.bool_],
    num_relevant: NDArray[np.int64],
    temperature: NDArray[np.floating],
) -> tuple[float, float]:
    """(c*, its mean F1) over lists of scores [B, k], descending, long enough for the longest list that should be kept.

    Raises:
        ValueError: if there is no query.
    """
    if not len(scores):
        raise ValueError("choosing a mass needs at least 1 held-out query, got none")
    f1 = []
    for mass in CANDIDATE_MASSES:
        kept = cut(scores, temperature, MassCutoff(float(mass)), num_searched=scores.shape[1]).num_kept
        f1.append(mean_f1(kept, is_relevant, num_relevant))
    best = int(np.argmax(f1))
    return float(CANDIDATE_MASSES[best]), f1[best]
