"""Queries whose relevance to some items is known: what a matrix holds, or what a ranker just said of the supports.

Axes: Q queries, X items.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from numpy import ndarray


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
