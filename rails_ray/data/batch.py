"""Training batches, drawn from the seed and the step's number alone.

Every worker draws the same global batch and keeps its own slice of the queries, so that the number of workers changes
nothing, and a run can begin at any step.

Axes: B queries of a worker's batch, N items of the batch, M relevant pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rails_ray.data.text import Queries
from rails_ray.losses.negatives import hidden_items


@runtime_checkable
class FeatureRows(Protocol):
    """Features of many inputs, from which some can be taken."""

    def __len__(self) -> int: ...

    def take(self, rows: Int[Tensor, " M"]) -> "FeatureRows": ...

    def to(self, device: torch.device | str) -> "FeatureRows": ...


@dataclass(frozen=True)
class TrainingBatch:
    """Queries, and items among which each query has one positive; the others are its negatives unless hidden.

    positive: column of each query's positive.
    is_hidden: items that are relevant to the query but not its positive.
    """

    queries: Any
    items: Any
    positive: Int[Tensor, " B"]
    is_hidden: Bool[Tensor, "B N"]

    def to(self, device: torch.device | str) -> "TrainingBatch":
        return TrainingBatch(
            self.queries.to(device), self.items.to(device), self.positive.to(device), self.is_hidden.to(device)
        )


class PairSampler:
    """Draws items uniformly, then queries that they answer: every item of a batch serves all its queries.

    The items are uniform negatives of each query, and encoded once for all, which is what a step of a text model
    spends its time on. A query with many relevant items comes up more often than one with a single one.
    """

    def __init__(
        self,
        queries: Queries,
        query_features: FeatureRows,
        item_features: FeatureRows,
        *,
        batch_size: int,
        num_items: int,
        seed: int,
        rank: int = 0,
        num_workers: int = 1,
    ) -> None:
        """Args:
            batch_size: queries of the global batch, a multiple of num_workers.
            num_items: N, items of the global batch, which all workers share.
            rank: of this worker, in 0 .. num_workers - 1.

        Raises:
            ValueError: if the batch cannot be divided among the workers.
        """
        if batch_size % num_workers:
            raise ValueError(f"batch_size must be a multiple of the {num_workers} workers, got {batch_size}")
        self.queries = queries
        self.query_features = query_features
        self.item_features = item_features
        self.batch_size = batch_size
        self.num_items = num_items
        self.seed = seed
        self.rank = rank
        self.num_workers = num_workers
        # Queries by item: those of item x are _answers[_starts[x] : _starts[x + 1]].
        query_of = np.repeat(np.arange(len(queries)), np.diff(queries.starts))
        by_item = np.argsort(queries.relevant_rows, kind="stable")
        self._answers = query_of[by_item]
        self._starts = np.concatenate(
            [[0], np.cumsum(np.bincount(queries.relevant_rows, minlength=len(item_features)))]
        )

    def batch(self, step: int) -> TrainingBatch:
        """This worker's slice of the global batch of a step."""
        generator = np.random.default_rng([self.seed, step])
        rows = generator.integers(len(self.item_features), size=self.num_items)
        num_answers = self._starts[rows + 1] - self._starts[rows]
        if not num_answers.any():  # none of the items answers a training query: let one in that does
            rows[0] = generator.choice(self.queries.relevant_rows)
            num_answers = self._starts[rows + 1] - self._starts[rows]
        positive = generator.choice(np.flatnonzero(num_answers), size=self.batch_size)
        chosen = self._answers[self._starts[rows[positive]] + generator.integers(num_answers[positive])]

        size = self.batch_size // self.num_workers
        mine = slice(self.rank * size, (self.rank + 1) * size)
        relevant = [self.queries.relevant(query) for query in chosen[mine].tolist()]
        item_rows, column = torch.from_numpy(rows), torch.from_numpy(positive[mine])
        return TrainingBatch(
            queries=self.query_features.take(torch.from_numpy(chosen[mine])),
            items=self.item_features.take(item_rows),
            positive=column,
            is_hidden=hidden_items(
                item_rows,
                column,
                torch.from_numpy(np.repeat(np.arange(size), [len(line) for line in relevant])),
                torch.from_numpy(np.concatenate(relevant)),
            ),
        )

    def batches(self, first_step: int, num_steps: int) -> Iterator[TrainingBatch]:
        """The batches of steps first_step .. num_steps - 1."""
        return (self.batch(step) for step in range(first_step, num_steps))
