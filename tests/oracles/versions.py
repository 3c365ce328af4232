"""Two versions compared by loops: their items, and the lists that they answer with."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any


def items_diff(
    first: Mapping[Hashable, Any], second: Mapping[Hashable, Any]
) -> tuple[int, list[Hashable], list[Hashable], list[Hashable]]:
    """How many ids both have, and the ids that are added, removed and changed; contents by id, in their order."""
    common = [own for own in second if own in first]
    added = [own for own in second if own not in first]
    removed = [own for own in first if own not in second]
    return len(common), added, removed, [own for own in common if first[own] != second[own]]


def churn(first: Sequence[Sequence[Hashable]], second: Sequence[Sequence[Hashable]], k: int) -> float:
    """1 - the mean over queries of |common items of both lists' first k| / length of the longer; lists, best first."""
    overlaps = []
    for former, latter in zip(first, second, strict=True):
        longer = max(len(former[:k]), len(latter[:k]))
        overlaps.append(sum(own in latter[:k] for own in former[:k]) / longer if longer else 1.0)
    return 1 - sum(overlaps) / len(overlaps)


def files_named(value: Any, folder: str) -> set[str]:
    """Every `path` in a record that was read as JSON, from the root of the storage; `folder` holds those that no object
    is."""
    found = set[str]()
    if isinstance(value, dict):
        if isinstance(path := value.get("path"), str):
            found.add(path if path.startswith("objects/") else f"{folder}/{path}")
        value = list(value.values())
    if isinstance(value, list):
        for own in value:
            found |= files_named(own, folder)
    return found
