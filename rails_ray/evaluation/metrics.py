"""Measures of retrieval, from ranks (against labels) and from cut lists. Each is a mean over queries, in [0, 1].

    hit rate@k = mean_q 1[rank of the first relevant item <= k]
    MRR        = mean_q 1 / rank of the first relevant item

Axes: Q queries, k results.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rails_ray.cutoffs.calibration import mean_f1


def hit_rate(best_rank: NDArray[np.int64], k: int) -> float:
    return float((best_rank <= k).mean())


def mean_reciprocal_rank(best_rank: NDArray[np.int64]) -> float:
    return float((1 / best_rank).mean())


@dataclass(frozen=True)
class ListQuality:
    """What a cut-off keeps.

    precision: relevant share of a kept list, over the queries that keep any.
    recall: kept share of the relevant items, against labels.
    f1: mean F1 of the two, query by query.
    num_kept: quantiles .1, .5, .9 of the lists' lengths.
    empty_fraction: queries that keep nothing.
    """

    precision: float
    recall: float
    f1: float
    num_kept: tuple[float, float, float]
    empty_fraction: float


def list_quality(
    num_kept: NDArray[np.int64], is_relevant: NDArray[np.bool_], num_relevant: NDArray[np.int64]
) -> ListQuality:
    """The quality of lists [Q, k] of which the first num_kept [Q] items are kept."""
    kept = np.arange(is_relevant.shape[1]) < num_kept[:, None]
    hits = (kept & is_relevant).sum(axis=1)
    some = num_kept > 0
    low, middle, high = np.quantile(num_kept, [0.1, 0.5, 0.9])
    return ListQuality(
        precision=float((hits[some] / num_kept[some]).mean()) if some.any() else 0.0,
        recall=float((hits / num_relevant).mean()),
        f1=mean_f1(num_kept, is_relevant, num_relevant),
        num_kept=(float(low), float(middle), float(high)),
        empty_fraction=float((~some).mean()),
    )
