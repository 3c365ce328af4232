"""In-batch negatives: pairs of a query and an item that answers it; the other pairs' items are a query's negatives.
Items that are drawn uniformly may come beside them (mixed negatives).

Each pair of the data comes up once in an epoch, in an order drawn for that epoch. The last batch of an epoch is what is
left of it, so that workers may have slices of different sizes; with fewer pairs than workers some have none.

A popular item comes up more often than a rare one, and so does a negative. Each stands in a batch once, whatever the
pairs that it answers: of B of the M pairs, c(x) of which are its own, beside N items that are drawn,

    P(x) = 1 - (1 - 1 / X)^N prod_{i < c(x)} (1 - B / (M - i)),    Q(x) = P(x) / sum_y P(y)

Negatives may be corrected by Q (`modules.losses.negatives`).

Source: MoPQ, Section 3.2; Yang et al., Mixed Negative Sampling for Learning Two-tower Neural Networks.
Differs from the source: there Q is the expected number of an item's copies, of which a batch here keeps one.

Axes: B queries of a worker's batch, N distinct items of it.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.data.batch import FeatureRows, TrainingBatch, relative, relevance_of
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
        num_items: int = 0,
        is_corrected: bool = False,
        seed: int,
        rank: int = 0,
        num_workers: int = 1,
    ) -> None:
        """Args:
        batch_size: pairs of the global batch.
        num_items: items that are drawn uniformly for each worker, beside those of its pairs.
        is_corrected: whether negatives are weighted by how often they come up (the logQ correction).
        rank: this worker's rank, in 0 .. num_workers - 1.
        """
        self.queries = queries
        self.query_features = query_features
        self.item_features = item_features
        self.batch_size = batch_size
        self.num_items = num_items
        self.seed = seed
        self.rank = rank
        self.num_workers = num_workers
        self._query_of = np.repeat(np.arange(len(queries)), queries.relevant.lengths)
        self._epochs = Epochs([seed], len(self._query_of))
        self._log_weights = self._weights() if is_corrected else None

    def batch(self, step: int) -> TrainingBatch:
        """This worker's slice of the global batch of a step."""
        pairs = self._epochs.cut(step, self.batch_size)
        mine = np.array_split(pairs, self.num_workers)[self.rank]
        chosen = self._query_of[mine]
        given = self.queries.relevant.weights
        weights = None if given is None else relative(given[pairs])
        rows, positive = np.unique(self.queries.relevant.rows[mine], return_inverse=True)
        if self.num_items:
            generator = np.random.default_rng([self.seed, 1, step, self.rank])
            drawn = generator.integers(len(self.item_features), size=self.num_items)
            rows = np.concatenate([rows, np.setdiff1d(drawn, rows)])
        item_rows = torch.from_numpy(rows)
        return TrainingBatch(
            queries=self.query_features.take(torch.from_numpy(chosen)),
            items=self.item_features.take(item_rows),
            positive=torch.from_numpy(positive),
            item_rows=item_rows,
            relevance=relevance_of(self.queries.relevant.take(chosen)),
            weight=self.num_workers / len(pairs),
            weights=None if weights is None else weights.tensor_split(self.num_workers)[self.rank],
            log_weights=None if self._log_weights is None else self._log_weights[item_rows],
        )

    def _weights(self) -> Float[Tensor, " X"]:
        """-log(X Q(x)) of every item."""
        num_corpus_items, num_pairs = len(self.item_features), self.batch_size / self.num_workers
        counts = np.bincount(self.queries.relevant.rows, minlength=num_corpus_items)
        # The i-th of an item's pairs is left out, given that those before it are.
        left_out = np.maximum(1 - num_pairs / (len(self._query_of) - np.arange(counts.max())), 0)
        pairs_left_out = np.append(1.0, left_out.cumprod())[counts]
        share = 1 - pairs_left_out * (1 - 1 / num_corpus_items) ** self.num_items
        share = np.maximum(share, share[share > 0].min())  # an item that never comes up needs no weight
        return torch.from_numpy(np.log(share.sum() / (share * num_corpus_items))).float()
