"""One training step of a chunk of SOLAR, and how good a chunk is.

    L = mean_q L_q          binary cross entropy, summed over buckets

Source: SOLAR, Section 3.2.

Axes: B queries, R buckets, C buckets of a sample, Q queries of a split, m buckets that a search looks up.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rails_ray.data.batch import FeatureRows
from rails_ray.data.buckets import BucketBatch
from rails_ray.modules.encoders.bags import Bags
from rails_ray.modules.encoders.solar import Chunk, InputVectors
from rails_ray.modules.losses.bucket_cross_entropy import (
    BucketPositives,
    bucket_cross_entropy,
    sampled_bucket_cross_entropy,
)
from rails_ray.search.indexes.inverted import NUM_PROBES
from rails_ray.training.step import precision_on

BATCH_SIZE = 512  # validation queries encoded at once


class BucketStep(nn.Module):
    """Loss of a chunk on a batch. It shares only `precision_on` with `TrainingStep`: it scores buckets, so that it
    encodes no items and needs neither a contrast nor an objective.

    Args:
        num_sampled: buckets drawn as negatives, the same for the whole batch; 0 for all.
        precision: dtype of the chunk's products, None for bfloat16 on GPUs and float32 elsewhere; the loss is float32.
    """

    def __init__(self, chunk: Chunk, *, num_sampled: int = 0, precision: torch.dtype | None = None) -> None:
        super().__init__()
        self.chunk = chunk
        self.num_sampled = num_sampled
        self.precision = precision

    def forward(self, batch: BucketBatch) -> Float[Tensor, ""]:
        """The mean over queries, in nats."""
        num_buckets = self.chunk.config.num_buckets
        if not 0 < self.num_sampled < num_buckets:
            return bucket_cross_entropy(self._logits(batch.queries), batch.positives).mean()
        query, bucket = batch.positives
        drawn = torch.randperm(num_buckets)[: self.num_sampled].to(bucket.device)
        is_drawn = torch.zeros(num_buckets, dtype=torch.bool, device=bucket.device).index_fill(0, drawn, True)
        if len(drawn) + len(bucket) >= num_buckets:
            logits = self._logits(batch.queries)
            return sampled_bucket_cross_entropy(logits, batch.positives, is_drawn, num_buckets).mean()
        # A column that is a copy of the one before it is not counted: the host would wait for the number of the others.
        columns = torch.cat([drawn, bucket]).sort().values
        is_sampled = is_drawn[columns]
        is_sampled[1:] &= columns[1:] != columns[:-1]
        positives = BucketPositives(query, torch.searchsorted(columns, bucket))
        logits = self._logits(batch.queries, columns)
        return sampled_bucket_cross_entropy(logits, positives, is_sampled, num_buckets).mean()

    def _logits(self, queries: Bags | InputVectors, buckets: Int[Tensor, " C"] | None = None) -> Float[Tensor, "B _"]:
        precision = precision_on(queries.device, self.precision)
        with torch.autocast(queries.device.type, precision, enabled=precision != torch.float32):
            logits: Tensor = self.chunk(queries, buckets)
        return logits.float()


def measured_probes(num_buckets: int) -> int:
    """The m of a bucket recall: NUM_PROBES, but at most 2% of the buckets, as a larger share would soon hold all."""
    return min(NUM_PROBES, -(-num_buckets // 50))


@torch.no_grad()
def bucket_recall(chunk: Chunk, features: FeatureRows, positives: BucketPositives, num_probes: int) -> float:
    """The share of a query's positive buckets that are among its m most probable ones, mean over queries.

    Args:
        num_probes: m, buckets looked at per query.
    """
    device = next(chunk.parameters()).device
    is_found = torch.zeros(len(positives.query))
    for first in range(0, len(features), BATCH_SIZE):
        rows = torch.arange(first, min(first + BATCH_SIZE, len(features)))
        best = chunk(features.take(rows).to(device)).topk(num_probes, dim=1).indices.cpu()
        here = (positives.query >= first) & (positives.query < first + len(rows))
        queries, bucket = positives.query[here] - first, positives.bucket[here]
        is_found[here] = (best[queries] == bucket.unsqueeze(1)).any(dim=1).float()
    counts = torch.bincount(positives.query, minlength=len(features))
    found = torch.zeros(len(features)).index_add(0, positives.query, is_found)
    return float((found / counts).mean())
