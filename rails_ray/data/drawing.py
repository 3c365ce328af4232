"""How negatives are drawn from the corpus, and what a drawn one stands for.

| member       | an item is drawn                                                          |
|--------------|---------------------------------------------------------------------------|
| `Uniform`    | as often as any other                                                     |
| `EveryItem`  | once, whatever is wanted                                                  |
| `Popularity` | as often as it answers training queries, to a power; at least once        |
| `Mixture`    | half by the first, half by the second                                     |

Axes: X items of the corpus, N drawn.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Drawing(Protocol):
    """Draws item rows."""

    def draw(self, generator: np.random.Generator, size: Sequence[int]) -> NDArray[np.int64]:
        """Rows in an array of this shape, with replacement; `EveryItem` has a line of all items in place of more."""

    def log_weights(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """-log(X Q(x)) of each row; None if it is 0 for all, or shall not be corrected."""


class Uniform:
    """The contract of `Drawing`."""

    def __init__(self, num_items: int) -> None:
        self.num_items = num_items

    def draw(self, generator: np.random.Generator, size: Sequence[int]) -> NDArray[np.int64]:
        return generator.integers(self.num_items, size=tuple(size))

    def log_weights(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
        return None


class EveryItem:
    """The contract of `Drawing`, for lines as long as the corpus or longer."""

    def __init__(self, num_items: int) -> None:
        self.num_items = num_items

    def draw(self, generator: np.random.Generator, size: Sequence[int]) -> NDArray[np.int64]:
        *shape, num = size
        return np.tile(np.arange(min(num, self.num_items)), [*shape, 1])

    def log_weights(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
        return None


class Popularity:
    """The contract of `Drawing`.

    Args:
        counts: how many training queries each item answers [X]; those that answer none count as one.
        power: 0 draws uniformly, 1 by the counts as they are.
        is_corrected: whether negatives are weighted (the logQ correction).
    """

    def __init__(self, counts: NDArray[np.integer], power: float, *, is_corrected: bool) -> None:
        shares = np.maximum(counts, 1).astype(np.float64) ** power
        self.probabilities = shares / shares.sum()
        self.is_corrected = is_corrected
        self._ends = self.probabilities.cumsum()
        self._ends[-1] = 1.0

    def draw(self, generator: np.random.Generator, size: Sequence[int]) -> NDArray[np.int64]:
        return np.searchsorted(self._ends, generator.random(tuple(size)), side="right")

    def log_weights(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
        return _log_weights(self.probabilities, rows) if self.is_corrected else None


class Mixture:
    """The contract of `Drawing`: the last axis holds uniform rows, then those by popularity."""

    def __init__(self, popularity: Popularity) -> None:
        self.popularity = popularity
        self.uniform = Uniform(len(popularity.probabilities))
        self.probabilities = (popularity.probabilities + 1 / self.uniform.num_items) / 2

    def draw(self, generator: np.random.Generator, size: Sequence[int]) -> NDArray[np.int64]:
        *shape, num = size
        return np.concatenate(
            [
                self.uniform.draw(generator, [*shape, num - num // 2]),
                self.popularity.draw(generator, [*shape, num // 2]),
            ],
            axis=-1,
        )

    def log_weights(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
        return _log_weights(self.probabilities, rows) if self.popularity.is_corrected else None


def _log_weights(probabilities: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    weights: NDArray[np.float32] = -np.log(probabilities[rows] * len(probabilities)).astype(np.float32)
    return weights
