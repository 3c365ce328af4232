"""In-batch negatives: pairs of a query and an item that answers it; the other pairs' items are a query's negatives.

Each pair of the data comes up once in an epoch, in an order drawn for that epoch. The last batch of an epoch is what is
left of it, so that workers may have slices of different sizes; with fewer pairs than workers some have none.

A popular item is drawn more often than a rare one, and so is a negative more often; `PairSampler` draws all alike.

Source: MoPQ, Section 3.2.

Axes: B queries of a worker's batch, N distinct items of it.
"""

import numpy as np
import torch

from rails_ray.data.batch import FeatureRows, TrainingBatch, relevance_of
from rails_ray.data.epochs import Epochs
from rails_ray.data.queries import Queries


class InBatchSampler:
    """Draws relevant pairs; a worker's items are the items of its own pairs, each once."""

    def __init__(
        self,
        queries: Queries,
        query_features: FeatureRows,
        item_features: FeatureRows,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        num_workers: int = 1,
    ) -> None:
        """Args:
        batch_size: pairs of the global batch.
        rank: this worker's rank, in 0 .. num_workers - 1.
        """
        self.queries = queries
        self.query_features = query_features
        self.item_features = item_features
        self.batch_size = batch_size
        self.rank = rank
        self.num_workers = num_workers
        self._query_of = np.repeat(np.arange(len(queries)), queries.relevant.lengths)
        self._epochs = Epochs([seed], len(self._query_of))

    def batch(self, step: int) -> TrainingBatch:
        """This worker's slice of the global batch of a step."""
        pairs = self._epochs.cut(step, self.batch_size)
        mine = np.array_split(pairs, self.num_workers)[self.rank]
        chosen = self._query_of[mine]
        rows, positive = np.unique(self.queries.relevant.rows[mine], return_inverse=True)
        item_rows = torch.from_numpy(rows)
        return TrainingBatch(
            queries=self.query_features.take(torch.from_numpy(chosen)),
            items=self.item_features.take(item_rows),
            positive=torch.from_numpy(positive),
            item_rows=item_rows,
            relevance=relevance_of(self.queries.relevant.take(chosen)),
            weight=self.num_workers / len(pairs),
        )
