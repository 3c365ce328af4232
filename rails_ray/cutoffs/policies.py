"""The ways to cut a list of scores descending: by probability mass, by a fixed score, by a number of items.

Source: pEBR, Section 3: the first against the other two.

Axes: B queries, k results.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.distributions import beta_threshold


@dataclass(frozen=True)
class MassCutoff:
    """Keep items above the score that a relevant item reaches with probability `mass`. Needs a trained tau_q."""

    mass: float
    max_items: None = None

    def __post_init__(self) -> None:
        if not 0 < self.mass < 1:
            raise ValueError(f"mass must be above 0 and below 1, got {self.mass}")

    def threshold(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        return beta_threshold(self.mass, temperature)


@dataclass(frozen=True)
class ScoreCutoff:
    """Keep items whose score is at least `score`."""

    score: float
    max_items: None = None

    def __post_init__(self) -> None:
        if not -1 <= self.score <= 1:
            raise ValueError(f"score must be in [-1, 1], got {self.score}")

    def threshold(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        return np.full(len(temperature), self.score, dtype=np.float64)


@dataclass(frozen=True)
class TopKCutoff:
    """Keep the best `max_items`, whatever their scores."""

    max_items: int

    def __post_init__(self) -> None:
        if self.max_items < 1:
            raise ValueError(f"top_k must be at least 1, got {self.max_items}")

    def threshold(self, temperature: NDArray[np.floating]) -> NDArray[np.float64]:
        return np.full(len(temperature), -np.inf)


@dataclass(frozen=True)
class Cut:
    """What a cut-off decided for each query.

    threshold: the lowest score kept; -inf where only a number of items was asked for.
    num_kept: items of the list to return, from its start.
    is_truncated: whether the list ended before the scores fell below the threshold, so that more may qualify.
    """

    threshold: NDArray[np.float64]
    num_kept: NDArray[np.int64]
    is_truncated: NDArray[np.bool_]


def cut(
    scores: NDArray[np.floating],
    temperature: NDArray[np.floating],
    cutoff: Cutoff,
    num_searched: int | NDArray[np.integer],
) -> Cut:
    """Apply `cutoff` to scores [B, k], descending.

    Args:
        num_searched: items, for all queries or for each [B], of which these are the best k.
    """
    num_found = scores.shape[1]
    threshold = cutoff.threshold(temperature)
    num_kept = (scores >= threshold[:, None]).sum(axis=1)
    if cutoff.max_items is not None:
        num_kept = np.minimum(num_kept, cutoff.max_items)
        is_truncated = np.broadcast_to(num_found < np.minimum(cutoff.max_items, num_searched), len(scores))
    else:
        is_truncated = (num_kept == num_found) & (num_found < num_searched)
    return Cut(threshold, num_kept, is_truncated)
