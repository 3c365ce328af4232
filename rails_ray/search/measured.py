"""Recall of a search against brute force, and the choice among searches that were measured.

    recall(q) = |{x in found(q): x in best(q) or s(q, x) >= s_k(q)}| / |best(q)|,    1 if best(q) is empty

s_k is the last score of best(q), the k best items by brute force: an item that ties with it is as good.

Axes: B queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rails_ray.kernels.top_k import TopK
from rails_ray.search.indexes.recall import ROUNDING


@dataclass(frozen=True)
class SearchFigures:
    """
    method, params: the method, and the search parameters that it was given.
    k: items of a list.
    num_queries: queries that measured the recall.
    recall: mean recall@k against brute force, in [0, 1].
    low, high: its 95% interval; both are the recall where the method passes over no item.
    certified_fraction: share of the queries whose certificate says that the answer is exact.
    ms: median time of a search for one query, in milliseconds.
    """

    method: str
    params: Mapping[str, int]
    k: int
    num_queries: int
    recall: float
    low: float
    high: float
    certified_fraction: float
    ms: float


@dataclass(frozen=True)
class SearchChoice:
    """
    best: the fastest search whose interval begins at the target or above; None if there is none.
    nearest: of the others, the one whose interval begins highest, and the fastest of several; None if there is none.
    """

    best: SearchFigures | None
    nearest: SearchFigures | None


def choose(measured: Sequence[SearchFigures], target_recall: float) -> SearchChoice:
    """The fastest search that reaches a recall, and the nearest of those that do not."""
    reaching = [own for own in measured if own.low >= target_recall]
    others = [own for own in measured if own.low < target_recall]
    best = min(reaching, key=lambda own: own.ms, default=None)
    return SearchChoice(best, max(others, key=lambda own: (own.low, -own.ms), default=None))


def recalls(found: TopK, best: TopK) -> list[float]:
    """The recall of each query [B].

    Args:
        best: what brute force finds for the same queries; places at its end may hold no item.
    """
    shares = []
    lines = (found.scores.tolist(), found.item_rows.tolist(), best.scores.tolist(), best.item_rows.tolist())
    for scores, rows, best_scores, best_rows in zip(*lines, strict=True):
        wanted = {row: score for row, score in zip(best_rows, best_scores, strict=True) if score > -float("inf")}
        if not wanted:
            shares.append(1.0)
            continue
        reach = min(wanted.values()) - ROUNDING * abs(max(wanted.values()))
        num = sum(
            score > -float("inf") and (row in wanted or score >= reach) for score, row in zip(scores, rows, strict=True)
        )
        shares.append(min(num / len(wanted), 1.0))
    return shares
