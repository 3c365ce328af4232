"""The corpus of `filters`: vectors of length 1 with a number each, queries, and which items are the best of each share.

Everything is kept in a folder, so that a graph of a million vectors is built once.

Axes: B queries, X items, D width of a vector, k results.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.benches.peers_setting import Vectors, best_rows, unit

WIDTH, K = 64, 10
M, EF_CONSTRUCTION = 16, 64  # of every graph: pgvector's defaults, which are the least of all
NUM_CENTRES, SPREAD, QUERY_SPREAD = 1000, 0.6, 0.3  # of clusters; of an item and a query in a number of its vector
NUM_QUERIES, BATCH = 200, 32
SHARES = (0.5, 0.1, 0.01, 0.001)  # of the items that a filter passes


@dataclass(frozen=True)
class Corpus:
    """
    Args:
        folder: for the vectors, and for what is built of them.
    """

    folder: Path
    num_items: int

    @cached_property
    def vectors(self) -> Vectors:
        """The items [X, D], in clusters."""
        generator = np.random.default_rng(0)
        centres = generator.standard_normal((NUM_CENTRES, WIDTH), np.float32)
        items = centres[generator.integers(NUM_CENTRES, size=self.num_items)]
        return unit(items + SPREAD * generator.standard_normal(items.shape, np.float32))

    @cached_property
    def queries(self) -> Vectors:
        """The queries [B, D], each near an item."""
        generator = np.random.default_rng(1)
        near = self.vectors[generator.integers(self.num_items, size=NUM_QUERIES)]
        return unit(near + QUERY_SPREAD / np.sqrt(WIDTH) * generator.standard_normal(near.shape, np.float32))

    @cached_property
    def numbers(self) -> NDArray[np.float64]:
        """An attribute of each item, drawn evenly from [0, 1): as many items are below a share as it says."""
        return np.random.default_rng(2).random(self.num_items)

    def is_left(self, share: float) -> NDArray[np.bool_]:
        """Which items the filter of a share passes [X]."""
        return self.numbers < share

    def best(self, share: float) -> list[set[int]]:
        """Rows of each query's k best items that pass, and of those that score as high as the k-th."""
        rows = np.flatnonzero(self.is_left(share))
        return [set(rows[line[line >= 0]].tolist()) for line in best_rows(self.vectors[rows], self.queries)]

    def kept(self, name: str, build: Callable[[Path], Any]) -> tuple[Path, float | None]:
        """A folder that is built unless it is kept, and the seconds that this takes; None where it is kept.

        Args:
            build: fills an empty folder.
        """
        folder, mark = self.folder / name, self.folder / f"{name}-{self.num_items}"
        if mark.exists():
            return folder, None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        began = time.perf_counter()
        build(folder)
        seconds = round(time.perf_counter() - began, 1)
        for older in self.folder.glob(f"{name}-*"):
            older.unlink()
        mark.touch()
        return folder, seconds


def recall(found: Iterable[Iterable[int]], best: Sequence[set[int]]) -> float:
    """Recall@k: the mean share of k, or of as many as pass, that are among the best."""
    pairs = zip(found, best, strict=True)
    return float(np.mean([min(len(set(rows) & own), K) / max(min(K, len(own)), 1) for rows, own in pairs]))


def in_turns(repeats: int, *calls: Callable[[], Any]) -> list[float]:
    """The median time of each call, in ms."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats + 1):  # the first is not counted
        for own, call in zip(seconds, calls, strict=True):
            began = time.perf_counter()
            call()
            own.append(time.perf_counter() - began)
    return [round(1000 * median(own[1:]), 3) for own in seconds]


def never() -> NDArray[np.bool_]:
    """Stand in for making a mask that is kept already.

    Raises:
        AssertionError: always.
    """
    raise AssertionError("a kept mask is made again")
