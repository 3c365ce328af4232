"""The codes of known items, by item id.

Axes: X items, K parts of a code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.errors import DamagedError
from rails_ray.item_ids import ItemId


@dataclass(frozen=True)
class ItemCodes:
    """
    codes: codes of the items, in order [X, K].
    """

    item_ids: Sequence[ItemId]
    codes: NDArray[np.int32]

    def or_else(self, others: "ItemCodes") -> "ItemCodes":
        """These codes, and the codes from `others` for items that these lack."""
        own = set(self.item_ids)
        rows = [row for row, item_id in enumerate(others.item_ids) if item_id not in own]
        item_ids = [*self.item_ids, *(others.item_ids[row] for row in rows)]
        return ItemCodes(item_ids, np.concatenate([self.codes, others.codes[rows]]))

    @cached_property
    def _rows(self) -> dict[Any, int]:
        return {item_id: row for row, item_id in enumerate(self.item_ids)}

    def of(self, item_ids: Any) -> "ItemCodes":
        """The codes of some items, in order.

        Raises:
            DamagedError: if an item has no codes.
        """
        try:
            rows = [self._rows[item_id] for item_id in item_ids]
        except KeyError as error:
            raise DamagedError(f"codes must hold every item that is encoded, got none of {error}") from None
        return ItemCodes(item_ids, self.codes[rows])

    @property
    def tensor(self) -> Int[Tensor, "X K"]:
        """A copy, because Arrow's arrays are read-only."""
        return torch.tensor(self.codes)
