"""Texts with what a heavy ranker says of items for each.

Axes: Q queries, X items.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rails_ray.data.dataset import Texts
from rails_ray.item_ids import ItemId


@dataclass(frozen=True, eq=False)
class ScoredTexts:
    """The contract of `Inputs` and of `ScoredQueries`.

    scores: [Q, X].
    """

    texts: Texts
    item_ids: Sequence[ItemId]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: int, /) -> str:
        return self.texts[number]

    def take(self, numbers: NDArray[np.integer] | slice) -> "ScoredTexts":
        return replace(self, texts=self.texts.take(numbers), scores=self.scores[numbers])

    def in_corpus(self, rows: NDArray[np.int64]) -> "ScoredTexts":
        """Return the queries as they are: scores name their items."""
        return self

    def digest(self) -> str:
        found = hashlib.sha256(self.texts.digest().encode())
        found.update(np.ascontiguousarray(self.scores).data)
        return found.hexdigest()
