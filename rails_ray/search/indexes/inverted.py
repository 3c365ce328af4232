"""The items of each bucket, and the items that stand in a query's best buckets.

    sum(q, x) = sum over the chunks k in which q posts bucket code_k(x) of its weight_k(code_k(x))

The candidates of a query are the items with the largest sums.

With the bucket's entry T_k[b] as its weight this is the paper's sum: a chunk that does not post an item counts as 0.
With T_k[b] - t_k, t_k the last entry posted, it is a bound of the score less sum_k t_k (`search.methods.look_up`).

Source: SOLAR, Section 4 (inference, Figure 2).

Axes: B queries, X items, K chunks, R buckets, m buckets posted of each chunk.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from rails_ray.kernels import postings
from rails_ray.kernels.postings import Summed
from rails_ray.search.indexes.lookup import check_codes
from rails_ray.search.masks import Mask

NUM_PROBES = 100  # m, buckets of each chunk that a search looks up by default, as in the paper


class TopBuckets(NamedTuple):
    """The m largest entries of each chunk, descending, equal ones by the lower bucket."""

    buckets: Integer[Tensor, "B K m"]
    values: Float[Tensor, "B K m"]


def top_buckets(tables: Float[Tensor, "B K R"], num_probes: int) -> TopBuckets:
    """Which buckets to post.

    Args:
        tables: finite.

    Raises:
        ValueError: unless 1 <= num_probes <= R.
    """
    check_probes(num_probes, tables.shape[2])
    found = postings.top_entries(tables.flatten(end_dim=1), num_probes)
    shape = (*tables.shape[:2], num_probes)
    return TopBuckets(found.item_rows.view(shape), found.scores.view(shape))


class InvertedIndex:
    """Postings of `codes` [X, K]: K numbers of buckets for each item.

    Raises:
        ValueError: if a code is not the number of a bucket.
    """

    def __init__(self, codes: Integer[Tensor, "X K"], num_buckets: int) -> None:
        largest = check_codes(codes)
        if largest >= num_buckets:
            raise ValueError(f"codes must be below the {num_buckets} buckets, got {largest}")
        self.num_items, self.num_chunks = codes.shape
        self.num_buckets = num_buckets
        self.postings = postings.sort_by_bucket(codes, num_buckets)

    @property
    def size_bytes(self) -> int:
        """Size of the postings in memory."""
        return sum(column.nbytes for column in self.postings)

    def candidates(
        self,
        buckets: Integer[Tensor, "B K m"],
        weights: Float[Tensor, "B K m"],
        num: int,
        mask: Mask | None = None,
    ) -> Summed:
        """For each query, the min(num, X) items with the largest sums of weights, equal sums by the lower row, and how
        many items stand in its buckets at all.

        Args:
            buckets: each query's buckets, distinct within a chunk.
            weights: finite; added in float32, in the order of the chunks.

        Raises:
            ValueError: unless there are num >= 1 places and K buckets 0 .. R - 1.
        """
        if num < 1:
            raise ValueError(f"num must be at least 1, got {num}")
        self._check(buckets)
        hidden = None if mask is None else mask.hidden_rows(len(buckets), self.postings.rows.shape[1])
        return postings.best_sums(self.postings, buckets, weights, num, hidden)

    def num_postings(self, buckets: Integer[Tensor, "B K m"]) -> Int[Tensor, " B"]:
        """How many postings a search visits. An item in several of a query's buckets counts several times, so that this
        is at least the number of items that the search touches."""
        self._check(buckets)
        chunk = torch.arange(self.num_chunks, device=buckets.device)[:, None]
        starts = self.postings.starts
        return (starts[chunk, buckets.long() + 1] - starts[chunk, buckets.long()]).sum(dim=(1, 2))

    def _check(self, buckets: Integer[Tensor, "B K m"]) -> None:
        if buckets.shape[1] != self.num_chunks:
            raise ValueError(f"buckets must be of all {self.num_chunks} chunks, got {buckets.shape[1]}")
        if not buckets.numel():
            return
        smallest, largest = (int(end) for end in buckets.aminmax())
        if smallest < 0 or largest >= self.num_buckets:
            wrong = smallest if smallest < 0 else largest
            raise ValueError(f"buckets must be at least 0 and below the {self.num_buckets} buckets, got {wrong}")


def check_probes(num_probes: int, num_buckets: int) -> None:
    """Raises:
    ValueError: unless 1 <= num_probes <= num_buckets.
    """
    if not 1 <= num_probes <= num_buckets:
        raise ValueError(f"num_probes must be at least 1 and at most the {num_buckets} buckets, got {num_probes}")
