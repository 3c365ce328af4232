"""Recall against brute force: the share of the true k best that a method returns.

Axes: B queries, k results.
"""

from collections.abc import Hashable, Sequence


def recall_at_k(found: Sequence[Sequence[Hashable]], expected: Sequence[Sequence[Hashable]]) -> float:
    """The mean over queries of |found and expected| / |expected|, lists given as item rows or item ids.

    Raises:
        ValueError: if the two do not hold the same number of lists, or an expected list is empty.
    """
    if len(found) != len(expected):
        raise ValueError(f"found must hold one list per expected list, {len(expected)}, got {len(found)}")
    if not expected or not all(len(line) for line in expected):
        raise ValueError("expected must hold lists of at least 1 item, got an empty one")
    shares = [len(set(a) & set(b)) / len(set(b)) for a, b in zip(found, expected, strict=True)]
    return sum(shares) / len(shares)
