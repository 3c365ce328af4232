"""What is found, and how good a list is."""

import math
from collections.abc import Sequence

import numpy as np

from oracles.vectors import Matrix, Vector


def top_k(scores: Vector, k: int, excluded: Sequence[int] = ()) -> list[int]:
    """Item rows by score descending, equal scores by row."""
    rows = [row for row in range(len(scores)) if row not in set(excluded)]
    return sorted(rows, key=lambda row: (-scores[row], row))[:k]


def hidden_items(
    item_rows: Sequence[int], positive: Sequence[int], relevant: Sequence[Sequence[int]]
) -> list[list[bool]]:
    """Items of the batch that are relevant to a query and not its positive column."""
    return [
        [row in rows and column != own for column, row in enumerate(item_rows)]
        for own, rows in zip(positive, relevant, strict=True)
    ]


def rank_of_best(scores: Vector, relevant: Sequence[int], excluded: Sequence[int] = ()) -> int:
    """The rank, from 1, of the first relevant item in the order of `top_k`."""
    return 1 + min(top_k(scores, len(scores), excluded).index(row) for row in relevant)


def ndcg(is_relevant: Sequence[bool], num_relevant: int, k: int) -> float:
    """Of one query; Järvelin and Kekäläinen, with gains of 0 and 1."""
    found = sum(1 / math.log2(rank + 1) for rank, hit in enumerate(is_relevant[:k], start=1) if hit)
    return found / sum(1 / math.log2(rank + 1) for rank in range(1, min(num_relevant, k) + 1))


def list_f1(kept: Sequence[bool], is_relevant: Sequence[bool], num_relevant: int) -> float:
    """The harmonic mean of precision and recall of a kept list."""
    hits = sum(a and b for a, b in zip(kept, is_relevant, strict=True))
    if not hits:
        return 0.0
    precision, recall = hits / sum(kept), hits / num_relevant
    return 2 * precision * recall / (precision + recall)


def items_above(
    scores: Vector, threshold: float, cap: int, at_least: int = 0, excluded: Sequence[int] = ()
) -> tuple[list[int], bool]:
    """Item rows of `top_k` that reach the threshold, or the first `at_least`; whether the cap left one out."""
    rows = top_k(scores, len(scores), excluded)
    above = [row for row in rows if scores[row] >= threshold]
    return rows[: max(min(len(above), cap), at_least)], len(above) > cap


def shares_of_lists(is_relevant: Sequence[Sequence[bool]], num_relevant: Sequence[int], k: int) -> dict[str, float]:
    """Means over queries of the hits among the first k over k, over min(relevant, k) and over the relevant."""
    hits = [sum(1 for rank, hit in enumerate(line, start=1) if hit and rank <= k) for line in is_relevant]
    pairs = list(zip(hits, num_relevant, strict=True))
    return {
        "precision": sum(hit / k for hit, _ in pairs) / len(pairs),
        "attainable precision": sum(hit / min(count, k) for hit, count in pairs) / len(pairs),
        "recall of relevant": sum(hit / count for hit, count in pairs) / len(pairs),
    }


def bucket_recall(logits: Matrix, targets: Sequence[Sequence[int]], m: int) -> float:
    """The share of a query's positive buckets among the m with the largest logits, mean over queries."""
    shares = [sum(line[b] for b in top_k(z, m)) / sum(line) for z, line in zip(logits, targets, strict=True)]
    return sum(shares) / len(shares)


def slopes(cosines: Sequence[Vector], scores: Vector, ridge: float, near: float) -> Vector:
    """The weights of pairs of components in a linear fit to items' scores: least squares of rows that are weighted by
    rank, and one row for each pair that pulls its weight to 1 / P."""
    num_items, num_pairs = len(scores), len(cosines[0])
    best_first = top_k(scores, num_items)
    weights = [1 / (1 + near * best_first.index(item) / num_items) for item in range(num_items)]
    weights = [weight / sum(weights) for weight in weights]
    mean_score = sum(w * s for w, s in zip(weights, scores, strict=True))
    means = [sum(w * line[p] for w, line in zip(weights, cosines, strict=True)) for p in range(num_pairs)]
    rows, wanted = [], []
    for weight, line, score in zip(weights, cosines, scores, strict=True):
        centred = [cosine - mean for cosine, mean in zip(line, means, strict=True)]
        rows.append([weight**0.5 * c for c in centred])
        wanted.append(weight**0.5 * (score - mean_score - sum(centred) / num_pairs))
    for pair in range(num_pairs):
        variance = sum(w * (line[pair] - means[pair]) ** 2 for w, line in zip(weights, cosines, strict=True))
        rows.append([(ridge * variance) ** 0.5 if p == pair else 0.0 for p in range(num_pairs)])
        wanted.append(0.0)
    found, *_ = np.linalg.lstsq(np.array(rows), np.array(wanted))
    return [1 / num_pairs + float(e) for e in found]


def scored_in_rounds(
    cosines: Sequence[Vector],
    scores: Vector,
    num: int,
    num_rounds: int,
    ridge: float,
    near: float,
    excluded: Sequence[int] = (),
) -> list[int]:
    """Item rows that a search scores of a query: the first by the mean cosine, then in each round those that are best
    by the weights of all before."""
    left = [row for row in range(len(scores)) if row not in set(excluded)]
    num = min(num, len(scores))
    taken: list[int] = []
    for number in range(1, num_rounds + 1):
        weights = [1 / len(cosines[0])] * len(cosines[0])
        if taken:
            weights = slopes([cosines[row] for row in taken], [scores[row] for row in taken], ridge, near)
        fit = {row: sum(w * c for w, c in zip(weights, cosines[row], strict=True)) for row in left if row not in taken}
        while fit and len(taken) < math.ceil(num * number / num_rounds):
            taken.append(max(fit, key=fit.__getitem__))
            del fit[taken[-1]]
    return taken
