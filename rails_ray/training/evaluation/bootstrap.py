"""Differences of two models on the same queries, and how much of them is noise: paired bootstrap over queries.

    p = (1 + number of resamples whose mean difference is not above 0) / (1 + number of resamples)

one-sided, so that a small p says that the first model is ahead beyond noise.

Axes: Q queries, N models, R resamples.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

RESAMPLES, BLOCK = 10_000, 100  # resamples, and how many are drawn at once


@dataclass(frozen=True)
class Difference:
    """
    mean: of the first model less that of the second.
    p: as the module says, at least 1 in RESAMPLES + 1.
    relative: the mean as a share of the second model's, with an interval of 95%; NaN if that may be 0.
    """

    mean: float
    p: float
    relative: float
    relative_low: float
    relative_high: float


def difference(first: Float64[np.ndarray, " Q"], second: Float64[np.ndarray, " Q"]) -> Difference:
    """Compare a measure of two models, query by query."""
    means = resampled_means(np.stack([first, second], axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = first.mean() / second.mean() - 1
        low, high = np.quantile(means[:, 0] / means[:, 1] - 1, [0.025, 0.975])
    return Difference(
        mean=float(first.mean() - second.mean()),
        p=float(((means[:, 0] <= means[:, 1]).sum() + 1) / (RESAMPLES + 1)),
        relative=float(relative),
        relative_low=float(low),
        relative_high=float(high),
    )


def resampled_means(values: Float64[np.ndarray, "Q N"], seed: int = 0) -> Float64[np.ndarray, "R N"]:
    """Means of queries that are drawn with replacement, the same for all models."""
    blocks = np.split(_resamples(len(values), seed), RESAMPLES // BLOCK)
    return np.concatenate([counts @ values for counts in blocks]) / len(values)


@lru_cache(maxsize=1)  # all comparisons on a data set draw the same queries
def _resamples(num_queries: int, seed: int) -> NDArray[np.uint8]:
    """How often each resample holds each query [R, Q]."""
    generator, starts = np.random.default_rng(seed), num_queries * np.arange(BLOCK)[:, None]
    counts = np.empty((RESAMPLES, num_queries), np.uint8)
    for block in np.split(counts, RESAMPLES // BLOCK):
        places = generator.integers(num_queries, size=block.shape) + starts
        block[:] = np.bincount(places.ravel(), minlength=block.size).reshape(block.shape)
    return counts
