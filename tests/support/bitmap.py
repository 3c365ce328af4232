"""A second kind of mask, which only tests have: a filter over items that is the same for all queries."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rails_ray.search.masks import HiddenRows


@dataclass(frozen=True)
class Bitmap:
    """is_hidden: of each item [X]."""

    is_hidden: Tensor

    def hide(self, scores: Tensor, first_row: int = 0) -> Tensor:
        return scores.masked_fill_(self.is_hidden[first_row : first_row + scores.shape[1]], -torch.inf)

    def num_left(self, num_queries: int, num_items: int) -> Tensor:
        return torch.full((num_queries,), num_items - int(self.is_hidden[:num_items].sum()))

    def hidden_rows(self, num_queries: int, num_items: int) -> HiddenRows:
        rows = self.is_hidden[:num_items].nonzero()[:, 0].numpy()
        return HiddenRows(np.zeros(num_queries, np.int64), np.full(num_queries, len(rows)), rows)

    def of_queries(self, lines: Tensor) -> "Bitmap":
        return self

    def repeat_each(self, times: int) -> "Bitmap":
        return self
