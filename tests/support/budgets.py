"""Versions that are opened with a ranker that counts, or that takes time of a clock of its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rails_ray.serving import local
from rails_ray.serving.budgets import KeptScores
from rails_ray.serving.local import LocalVersion
from support.ranked import by_pairs

QUERIES = ["red hat", "blue", "green bo"]  # the last is in no data set
Rank = Callable[..., Sequence[float]]


class Counted:
    """A ranker that counts."""

    def __init__(self, ranker: Rank = by_pairs) -> None:
        self.ranker = ranker
        self.calls: list[tuple[str, list[Any]]] = []

    def __call__(self, query: Any, candidates: Any) -> Sequence[float]:
        self.calls.append((query["text"], [candidate.item_id for candidate in candidates]))
        return self.ranker(query, candidates)

    @property
    def num_pairs(self) -> int:
        return sum(len(item_ids) for _, item_ids in self.calls)


def opened(root: Path, ranker: Rank = by_pairs) -> tuple[LocalVersion, Counted]:
    counted = Counted(ranker)
    return local.open(str(root), ranker=counted), counted


class Clock:
    """Time of which each call of a ranker takes 10 ms."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def rank(self, query: Any, candidates: Any) -> Sequence[float]:
        self.now += 0.010
        return by_pairs(query, candidates)

    def opened(self, root: Path, ranker: Rank | None = None) -> tuple[LocalVersion, Counted]:
        """A version whose time this is."""
        version, counted = opened(root, ranker or self.rank)
        version.engine.ranking = replace(version.engine.ranking, clock=self, kept=KeptScores())
        version.clock = self
        return version, counted
