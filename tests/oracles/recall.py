"""Recall of a list against the best one, item by item."""

from collections.abc import Sequence


def recall(found: Sequence[tuple[int, float]], best: Sequence[tuple[int, float]]) -> float:
    """|{x in found: x in best, or its score is at least the last of best}| / |best|; (row, score) pairs, best first."""
    if not best:
        return 1.0
    num = 0
    for row, score in found:
        if score >= best[-1][1] or row in [other for other, _ in best]:
            num += 1
    return min(num, len(best)) / len(best)


def fastest(searches: Sequence[tuple[str, float, float]], target: float) -> str | None:
    """Name of the fastest of (name, lower bound of the recall, ms) that reach the target."""
    reaching = sorted((ms, name) for name, low, ms in searches if low >= target)
    return reaching[0][1] if reaching else None
