"""Everything once in an epoch, in an order that is drawn for that epoch.

`InBatchSampler` draws pairs by it, `BucketSampler` queries and `WindowSampler` users.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class Epochs:
    """Orders of the numbers 0 .. num - 1, one for each epoch; they depend on the seed and the epoch alone.

    Args:
        seed: one or more integers.
        num: how many numbers there are; at least 1.
    """

    def __init__(self, seed: Sequence[int], num: int) -> None:
        self.seed = tuple(seed)
        self.num = num
        self._order = lru_cache(maxsize=2)(self._order_of)

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([*self.seed, epoch]).permutation(self.num)

    def cut(self, step: int, size: int) -> NDArray[np.int64]:
        """Return what a step takes if the last batch of an epoch is what is left of it."""
        epoch, place = divmod(step, -(-self.num // size))
        return self._order(epoch)[place * size : (place + 1) * size]

    def through(self, step: int, size: int) -> NDArray[np.int64]:
        """Return what a step takes if every batch has `size` numbers and may reach into the next epoch."""
        epochs, places = np.divmod(np.arange(step * size, (step + 1) * size), self.num)
        return np.array([self._order(epoch)[place] for epoch, place in zip(epochs.tolist(), places, strict=True)])
