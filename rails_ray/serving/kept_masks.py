"""Rows of a shard that are left to be found, and the masks of filters, kept from search to search.

Axes: X rows of the shard.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from threading import Lock

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

MOST_KEPT_BYTES = 2**26  # of the masks of a shard


class LeftRows:
    """Rows of a shard that a search may find: which they are [X], or their numbers ascending; each is made of the other
    when it is first needed."""

    def __init__(
        self,
        num_rows: int,
        *,
        is_left: Bool[Tensor, " X"] | None = None,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self.num_rows = num_rows
        if is_left is not None:
            self.is_left = is_left
        if rows is not None:
            self.rows = rows

    @cached_property
    def is_left(self) -> Bool[Tensor, " X"]:
        left = torch.zeros(self.num_rows, dtype=torch.bool)
        left[torch.from_numpy(self.rows)] = True
        return left

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.is_left.numpy())

    @cached_property
    def num(self) -> int:
        """Number of rows that are left."""
        return len(self.rows) if "rows" in self.__dict__ else int(np.count_nonzero(self.is_left.numpy()))

    def has(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some rows are left."""
        if "is_left" in self.__dict__:
            found: NDArray[np.bool_] = self.is_left.numpy()[rows]
            return found
        return np.isin(rows, self.rows)

    def only(self, rows: NDArray[np.int64]) -> "LeftRows":
        """Those of some ascending rows that are left."""
        return LeftRows(self.num_rows, rows=rows[self.has(rows)])

    def without(self, rows: NDArray[np.int64]) -> "LeftRows":
        """All that are left but some rows."""
        if not len(rows):
            return self
        if "is_left" not in self.__dict__:
            return LeftRows(self.num_rows, rows=np.setdiff1d(self.rows, rows, assume_unique=True))
        left = self.is_left.clone()
        left[torch.from_numpy(rows)] = False
        return LeftRows(self.num_rows, is_left=left)


class KeptMasks:
    """Masks as packed bits, those that were used last, within some bytes. Threads may share it.

    num_found, num_made: masks that were kept when they were needed, and that were not.
    """

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self.most_bytes = most_bytes
        self.num_bytes = self.num_found = self.num_made = 0
        self._kept: OrderedDict[tuple[str, ...], NDArray[np.uint8]] = OrderedDict()
        self._lock = Lock()

    def mask(self, key: tuple[str, ...], num_rows: int, make: Callable[[], NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """The mask of a key, which `make` makes unless it is kept."""
        with self._lock:
            bits = self._kept.get(key)
            if bits is not None:
                self._kept.move_to_end(key)
                self.num_found += 1
        if bits is not None:
            return np.unpackbits(bits, count=num_rows).view(np.bool_)
        made = make()
        with self._lock:
            self.num_made += 1
            former = self._kept.pop(key, None)  # another thread may have made it
            self._kept[key] = np.packbits(made)
            self.num_bytes += _num_bytes(key, self._kept[key]) if former is None else 0
            while self.num_bytes > self.most_bytes:
                self.num_bytes -= _num_bytes(*self._kept.popitem(last=False))
        return made


def _num_bytes(key: tuple[str, ...], bits: NDArray[np.uint8]) -> int:
    return bits.nbytes + sum(map(len, key))
