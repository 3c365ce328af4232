"""Batches of a chunk: queries, and the buckets of the items that answer them.

Each query comes up once in an epoch, in an order drawn for that epoch and that chunk. The last batch of an epoch is
what is left of it.

Axes: B queries of a batch, X items, M pairs of a query and one of its positive buckets.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.data.batch import FeatureRows
from rails_ray.data.epochs import Epochs
from rails_ray.data.queries import ItemLists
from rails_ray.modules.losses.bucket_cross_entropy import BucketPositives


@dataclass(frozen=True)
class BucketBatch:
    """Queries with their positive buckets. It holds no items, and so shares only `queries` with a `TrainingBatch`."""

    queries: Any
    positives: BucketPositives

    def to(self, device: torch.device | str) -> "BucketBatch":
        return BucketBatch(self.queries.to(device), BucketPositives(*(column.to(device) for column in self.positives)))


class BucketSampler:
    """Draws the batches of one chunk.

    Args:
        relevant: the items that answer each query.
        features: features of the queries.
        buckets: the chunk's bucket of each item row [X].
        seed: the chunk's seed.

    Raises:
        ValueError: if no item answers a query.
    """

    def __init__(
        self,
        relevant: ItemLists,
        features: FeatureRows,
        buckets: NDArray[np.integer],
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        empty = np.flatnonzero(relevant.lengths == 0)
        if len(empty):
            raise ValueError(f"each query must have at least 1 relevant item, got none for query {empty[0]}")
        self.relevant = relevant
        self.features = features
        self.buckets = buckets
        self.batch_size = batch_size
        self.seed = seed
        self._epochs = Epochs([seed], len(relevant))

    def batch(self, step: int) -> BucketBatch:
        """The batch of a step."""
        chosen = self._epochs.cut(step, self.batch_size)
        queries = self.features.take(torch.from_numpy(chosen))
        return BucketBatch(queries, positives_of(self.relevant.take(chosen), self.buckets))


def positives_of(relevant: ItemLists, buckets: NDArray[np.integer]) -> BucketPositives:
    """Each query's positive buckets, which hold an item that answers it; each pair once.

    Args:
        buckets: the chunk's bucket of each item row [X].
    """
    query = np.repeat(np.arange(len(relevant)), relevant.lengths)
    width = int(buckets.max(initial=0)) + 1
    pairs = np.unique(query * width + buckets[relevant.rows])  # by query, then by bucket
    return BucketPositives(torch.from_numpy(pairs // width), torch.from_numpy(pairs % width))
