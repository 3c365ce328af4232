"""What is found, and how good a list is."""

from collections.abc import Sequence

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
