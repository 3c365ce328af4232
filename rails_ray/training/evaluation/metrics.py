"""Measures of retrieval, from ranks (against labels) and from cut lists. Each is a mean over queries, in [0, 1].

    hit rate@k = mean_q 1[rank of the first relevant item <= k]
    MRR        = mean_q 1 / rank of the first relevant item

and for a query with n_q relevant items whose list of k results holds h_q of them:

    precision            = mean_q h_q / k
    attainable precision = mean_q h_q / min(n_q, k)
    recall of relevant   = mean_q h_q / n_q
    NDCG                 = mean_q DCG_q / DCG of a perfect list,   DCG = sum over its hits of 1 / log2(rank + 1)

Axes: Q queries, k results, N places of the lists that are given.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import NDArray

from rails_ray.cutoffs.calibration import mean_f1


def hit_rate(best_rank: NDArray[np.int64], k: int) -> float:
    return float((best_rank <= k).mean())


def mean_reciprocal_rank(best_rank: NDArray[np.int64]) -> float:
    return float((1 / best_rank).mean())


def precision(is_relevant: Bool[np.ndarray, "Q N"], k: int) -> float:
    """Relevant share of the first k places; a place that holds nothing counts as a miss.

    Args:
        is_relevant: whether each item is relevant, by rank; lists may be longer or shorter than k.
    """
    return float((_hits(is_relevant, k) / k).mean())


def attainable_precision(is_relevant: Bool[np.ndarray, "Q N"], num_relevant: Int64[np.ndarray, " Q"], k: int) -> float:
    """Divide by what a perfect list has: 1 also for a query with fewer than k relevant items.

    SOLAR's code reports it as precision, which it exceeds wherever a query has fewer than k relevant items.
    """
    _check_relevant(num_relevant)
    return float((_hits(is_relevant, k) / np.minimum(num_relevant, k)).mean())


def recall_of_relevant(is_relevant: Bool[np.ndarray, "Q N"], num_relevant: Int64[np.ndarray, " Q"], k: int) -> float:
    """Share of a query's relevant items that are among the first k, against labels."""
    _check_relevant(num_relevant)
    return float((_hits(is_relevant, k) / num_relevant).mean())


def ndcg_of_queries(
    is_relevant: Bool[np.ndarray, "Q N"], num_relevant: Int64[np.ndarray, " Q"], k: int
) -> Float64[np.ndarray, " Q"]:
    """NDCG@k of each query, whose mean is NDCG."""
    _check_relevant(num_relevant)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    gains = 1 / np.log2(np.arange(2, k + 2))
    found = is_relevant[:, :k]
    ideal = gains.cumsum()[np.minimum(num_relevant, k) - 1]
    each: NDArray[np.float64] = (found * gains[: found.shape[1]]).sum(axis=1) / ideal
    return each


def _hits(is_relevant: Bool[np.ndarray, "Q N"], k: int) -> Int64[np.ndarray, " Q"]:
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    hits: NDArray[np.int64] = is_relevant[:, :k].sum(axis=1)
    return hits


def _check_relevant(num_relevant: Int64[np.ndarray, " Q"]) -> None:
    if (num_relevant < 1).any():
        raise ValueError(f"num_relevant must be at least 1 for each query, got {num_relevant.min()}")


@dataclass(frozen=True)
class ListQuality:
    """Quality of what a cut-off keeps.

    precision: relevant share of a kept list, over the queries that keep any.
    recall: kept share of the relevant items, against labels.
    f1: mean F1 of the two, query by query.
    num_kept: quantiles .1, .5, .9 of the lists' lengths.
    empty_fraction: share of queries that keep nothing.
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
