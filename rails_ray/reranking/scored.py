"""Queries whose relevance to some items is known: what a matrix holds, or what a ranker just said of the supports.

Axes: Q queries, X items; B queries of a batch, S supports, F numbers of query features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor


@runtime_checkable
class ScoredQueries(Protocol):
    """Texts, and the heavy ranker's scores of the same items for each."""

    @property
    def item_ids(self) -> Sequence[Any]:
        """The items that are scored."""

    @property
    def scores(self) -> Float[ndarray, "Q X"]:
        """NaN is a hole."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> str: ...


@dataclass(frozen=True)
class SupportScores:
    """The features of queries.

    scores: R(S_I, q).
    features: of the queries themselves; None if the model joins none.
    """

    scores: Float[Tensor, "B S"]
    features: Float[Tensor, "B F"] | None

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, rows: Any) -> "SupportScores":
        return SupportScores(self.scores[rows], None if self.features is None else self.features[rows])

    def to(self, device: torch.device | str) -> "SupportScores":
        return SupportScores(self.scores.to(device), None if self.features is None else self.features.to(device))
