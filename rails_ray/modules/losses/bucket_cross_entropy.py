"""Binary cross entropy of buckets: which of them hold an item that answers the query.

    y(q, b) = OR over items x that answer q of [b is x's bucket]
    L_q     = sum_b -y log sigmoid(z_b) - (1 - y) log(1 - sigmoid(z_b))        nats

As softplus(z) - z = softplus(-z), L_q is the sum of softplus(z) over all buckets less the sum of z over the positive
ones. If buckets are sampled, the negative ones in the sample stand for all negative ones.

Source: SOLAR, Section 3.2. Negative sampling: not in the source.

Axes: B queries, R buckets, C buckets of a sample, M pairs of a query and one of its positive buckets.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class BucketCrossEntropyConfig:
    """Binary cross entropy of buckets.

    Args:
        num_sampled_buckets: buckets drawn in each step to stand for all negative ones; 0 takes all buckets.
    """

    kind: Literal["bucket_cross_entropy"] = "bucket_cross_entropy"
    num_sampled_buckets: int = 0

    def __post_init__(self) -> None:
        if self.num_sampled_buckets < 0:
            raise ValueError(f"num_sampled_buckets must be at least 0, got {self.num_sampled_buckets}")


class BucketPositives(NamedTuple):
    """The positive buckets of queries, each pair of a query and a bucket once: the OR of the items' codes."""

    query: Int[Tensor, " M"]
    bucket: Int[Tensor, " M"]


def bucket_cross_entropy(logits: Float[Tensor, "B R"], positives: BucketPositives) -> Float[Tensor, " B"]:
    """The loss of each query, summed over all buckets."""
    own = logits.new_zeros(len(logits)).index_add(0, positives.query, logits[positives])
    return F.softplus(logits).sum(dim=1) - own


def sampled_bucket_cross_entropy(
    logits: Float[Tensor, "B C"],
    positives: BucketPositives,
    is_sampled: Bool[Tensor, " C"],
    num_buckets: int,
) -> Float[Tensor, " B"]:
    """Estimate the loss from a uniform sample of the buckets.

    It is unbiased if the sample has more buckets than a query has positive ones; a smaller one may hold no negative.

    Args:
        logits: logits of the sampled buckets, and of all buckets that are positive for any query.
        positives: the positive buckets, by column in place of number.
        is_sampled: which columns were sampled, without regard to what is positive.
        num_buckets: R.
    """
    num_queries = len(logits)
    zeros = logits.new_zeros(num_queries)
    own = logits[positives]
    is_drawn = is_sampled[positives.bucket].to(logits.dtype)
    num_positive = zeros.index_add(0, positives.query, torch.ones_like(own))
    num_drawn = zeros.index_add(0, positives.query, is_drawn)
    negatives = (F.softplus(logits) * is_sampled).sum(dim=1)
    negatives = negatives - zeros.index_add(0, positives.query, is_drawn * F.softplus(own))
    stands_for = (num_buckets - num_positive) / (is_sampled.sum() - num_drawn).clamp(min=1)
    return zeros.index_add(0, positives.query, F.softplus(-own)) + stands_for * negatives
