"""Stands in for the model of a training step if queries and items are encoded already.

Axes: B queries, X items of a batch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rails_ray.modules.similarities import Scored
from rails_ray.modules.similarities.states import ItemState, QueryState, take, to


@dataclass(frozen=True)
class FrozenRows:
    """The contract of `FeatureRows`: an input is the row of its state."""

    rows: Int[Tensor, " B"]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Tensor) -> "FrozenRows":
        return FrozenRows(self.rows[rows])

    def to(self, device: torch.device | str) -> "FrozenRows":
        return FrozenRows(self.rows.to(device))


class OverFrozen(nn.Module):
    """Model whose queries and items are encoded already, as `TrainingStep` takes it.

    Args:
        similarity: what compares them; it is not trained either.
        queries, items: all that batches are made of, on the CPU. They are not stored with the weights.
    """

    def __init__(self, similarity: nn.Module, queries: QueryState, items: ItemState) -> None:
        super().__init__()
        self.similarity: Any = similarity
        self.requires_grad_(False)
        self.queries = queries
        self.items = items

    def train(self, mode: bool = True) -> "OverFrozen":
        """It stays in evaluation mode: dropout in a similarity is for its own training."""
        super().train(False)
        return self

    def encode_queries(self, features: FrozenRows, precision: torch.dtype = torch.float32) -> QueryState:
        """The states of these rows."""
        return to(take(self.queries, features.rows.cpu()), features.rows.device)

    def encode_items(self, features: FrozenRows, precision: torch.dtype = torch.float32) -> ItemState:
        """The states of these rows."""
        return to(take(self.items, features.rows.cpu()), features.rows.device)

    def score(self, query: QueryState, items: ItemState) -> Scored:
        """Scores of all items, or of each query's."""
        scored: Scored = self.similarity(query, items)
        return scored
