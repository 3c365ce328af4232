"""Postings: the items of each bucket, and the sums of weights of the buckets that an item stands in.

    rows of bucket b in chunk k:  rows[k, starts[k, b] .. starts[k, b + 1] - 1], ascending
    sum(q, x) = sum over (k, b) posted for q with code_k(x) = b of weight(q, k, b)

Weights are added in float32, one chunk after the other. As an item stands in one bucket of a chunk, both versions do
the same operations in the same order, and a sum does not depend on the device, on the other items or queries, or on
where a corpus is cut.

The compiled version adds up one query at a time, in blocks of items whose sums fit the cache, visits only what is
posted, and keeps the best by keys in which score and row are one number; it holds no memory between calls.

Source: SOLAR, Section 4 (inference, Figure 2).

Axes: B queries, X items, K chunks, R buckets, m buckets of a chunk, N lines, L entries.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.kernels.compiled import in_threads, loops_for
from rails_ray.kernels.top_k import TopK, select

BLOCK_ITEMS = 2**18  # their sums take 1 MB, half of a core's cache
BLOCK_SUMS = 2**24  # queries * items of a block of the version in torch, 64 MB
KEYS_KEPT = 4  # times as many keys as are asked for, before the worst are thrown away
NO_KEY = np.uint64(2**64 - 1)
MOST_ITEMS = 2**32  # a key has 32 bits for a row
MOST_NARROW_ITEMS = 2**31
NO_ROWS = np.empty(0, np.int64)


class Postings(NamedTuple):
    """The items of each bucket; rows have 32 bits if they fit."""

    starts: Int[Tensor, "K R+1"]
    rows: Int[Tensor, "K X"]


class HiddenRows(NamedTuple):
    """Hidden rows as a compiled loop reads them: query q has rows[starts[q] : ends[q]], ascending. Queries with the
    same hidden items may share them."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    rows: NDArray[np.int64]


class Summed(NamedTuple):
    """
    top_k: the best items that a posting touched; -inf and row 0 at places without one.
    num_touched: how many items the postings touched.
    """

    top_k: TopK
    num_touched: Int[Tensor, " B"]


def plain_sort_by_bucket(codes: Integer[Tensor, "X K"], num_buckets: int) -> Postings:
    """The postings of all chunks, by stable sorts."""
    num_items, num_chunks = codes.shape
    starts = torch.zeros(num_chunks, num_buckets + 1, dtype=torch.int64, device=codes.device)
    rows = torch.empty(num_chunks, num_items, dtype=_row_dtype(num_items), device=codes.device)
    for chunk in range(num_chunks):
        buckets = codes[:, chunk].long()
        rows[chunk] = buckets.argsort(stable=True)
        starts[chunk, 1:] = buckets.bincount(minlength=num_buckets).cumsum(dim=0)
    return Postings(starts, rows)


def sort_by_bucket(codes: Integer[Tensor, "X K"], num_buckets: int) -> Postings:
    """The postings of all chunks, by a counting sort.

    Args:
        codes: in any integer dtype, each in 0 .. num_buckets - 1, which is not checked.
    """
    loops = loops_for(codes)
    if loops is None:
        return plain_sort_by_bucket(codes, num_buckets)
    num_items, num_chunks = codes.shape
    dtype = np.int32 if _row_dtype(num_items) == torch.int32 else np.int64
    # numpy's memory, unlike torch's, comes in large pages if there are any: a search then takes an eighth less.
    starts, rows = np.zeros((num_chunks, num_buckets + 1), np.int64), np.empty((num_chunks, num_items), dtype)
    array = codes.numpy()
    in_threads(lambda first, end: loops.sort_by_bucket(array, first, end, starts, rows), num_chunks)
    return Postings(torch.from_numpy(starts), torch.from_numpy(rows))


def top_entries(values: Float[Tensor, "N L"], num: int) -> TopK:
    """The largest entries of each line and their numbers, by the rule of `select`, which it must equal.

    Args:
        values: finite.
        num: at most L.
    """
    values = values.detach().float()
    loops = loops_for(values)
    if loops is None:
        return select(values, num)
    values = values.contiguous()
    num_lines, num_entries = values.shape
    found = np.empty((num_lines, num), np.uint64)
    array = values.numpy()
    bits = array.view(np.uint32)

    def work(first: int, end: int) -> None:
        largest = np.empty(num_entries // loops.TILE * loops.LANES, np.float32)
        loops.top_entries(array, bits, first, end, num, largest, np.empty(num_entries, np.uint64), found)
        found[first:end].sort(axis=1)

    in_threads(work, num_lines)
    return _decoded(found)


def plain_best_sums(
    postings: Postings,
    buckets: Integer[Tensor, "B K m"],
    weights: Float[Tensor, "B K m"],
    num: int,
    hidden: HiddenRows | None = None,
) -> Summed:
    """`best_sums` in torch, with a sum for every item: on a GPU, and if numba is not installed."""
    num_items = postings.rows.shape[1]
    size = max(BLOCK_SUMS // max(num_items, 1), 1)
    parts = []
    for first in range(0, max(len(buckets), 1), size):
        block = slice(first, first + size)
        scores = _sums(postings, buckets[block], weights[block].float())
        if hidden is not None:
            rows_of = [hidden.rows[i:j] for i, j in zip(hidden.starts[block], hidden.ends[block], strict=True)]
            query = torch.arange(len(scores)).repeat_interleave(
                torch.tensor([len(rows) for rows in rows_of], dtype=torch.int64)
            )
            scores[query, torch.from_numpy(np.concatenate([NO_ROWS, *rows_of]))] = -torch.inf
        top_k = select(scores, num)
        rows = top_k.item_rows.masked_fill(top_k.scores == -torch.inf, 0)
        parts.append((top_k.scores, rows, (scores > -torch.inf).sum(dim=1)))
    best, item_rows, num_touched = (torch.cat(column) for column in zip(*parts, strict=True))
    return Summed(TopK(best, item_rows), num_touched)


def best_sums(
    postings: Postings,
    buckets: Integer[Tensor, "B K m"],
    weights: Float[Tensor, "B K m"],
    num: int,
    hidden: HiddenRows | None = None,
) -> Summed:
    """For each query, the min(num, X) items with the largest sums among the items that its postings touch.

    Args:
        buckets: each query's buckets, distinct within a chunk and in 0 .. R - 1, which is not checked.
        weights: finite.
        hidden: items that are not touched.
    """
    loops = loops_for(postings.rows, buckets, weights)
    if loops is None:
        return plain_best_sums(postings, buckets, weights, num, hidden)
    num_queries, num_items = len(buckets), postings.rows.shape[1]
    num = min(num, num_items)
    found = np.full((num_queries, num), NO_KEY)
    num_touched = np.zeros(num_queries, np.int64)
    arrays = (
        postings.starts.numpy(),
        postings.rows.numpy(),
        buckets.long().contiguous().numpy(),
        weights.detach().float().contiguous().numpy(),
        *(_nothing_hidden(num_queries) if hidden is None else hidden),
    )

    def work(first: int, end: int) -> None:
        loops.best_sums(*arrays, first, end, *_workspace(arrays[2].shape[1:], num_items, num), found, num_touched)
        found[first:end].sort(axis=1)

    if num:
        in_threads(work, num_queries)
    return Summed(_decoded(found), torch.from_numpy(num_touched))


def _workspace(shape: tuple[int, ...], num_items: int, num: int) -> tuple[NDArray[np.generic], ...]:
    """Allocate what the loop over queries works in, a megabyte or two."""
    block = min(BLOCK_ITEMS, num_items)
    return (
        np.empty(shape, np.int64),
        np.empty(shape, np.int64),
        np.full(block, -np.inf, np.float32),
        np.empty(block, np.int32),
        np.empty(min(KEYS_KEPT * num, num_items) + 1, np.uint64),
    )


def _nothing_hidden(num_queries: int) -> HiddenRows:
    edges = np.zeros(num_queries, np.int64)
    return HiddenRows(edges, edges, NO_ROWS)


def _decoded(keys: NDArray[np.uint64]) -> TopK:
    """Scores and numbers of ascending keys."""
    high = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(high >> np.uint32(31), high, high ^ np.uint32(0x7FFFFFFF))
    is_none = keys == NO_KEY
    scores = np.where(is_none, np.float32(-np.inf), bits.view(np.float32))
    numbers = np.where(is_none, 0, (keys & np.uint64(0xFFFFFFFF)).astype(np.int64))
    return TopK(torch.from_numpy(scores), torch.from_numpy(numbers))


def _sums(
    postings: Postings, buckets: Integer[Tensor, "B K m"], weights: Float[Tensor, "B K m"]
) -> Float[Tensor, "B X"]:
    """The sum of every item, -inf at those that no posting touches."""
    num_queries, num_items = len(buckets), postings.rows.shape[1]
    sums = torch.zeros(num_queries * num_items, device=buckets.device)
    is_touched = torch.zeros_like(sums, dtype=torch.bool)
    line = torch.arange(num_queries, device=buckets.device)[:, None].expand(buckets.shape[::2]).flatten()
    for chunk, (starts, rows) in enumerate(zip(*postings, strict=True)):
        own = buckets[:, chunk].flatten().long()
        first = starts[own]
        num = starts[own + 1] - first
        before = num.cumsum(dim=0) - num
        posting = torch.arange(int(num.sum()), device=own.device) + (first - before).repeat_interleave(num)
        place = line.repeat_interleave(num) * num_items + rows[posting]  # each at most once, so that no two adds meet
        sums[place] += weights[:, chunk].flatten().repeat_interleave(num)
        is_touched[place] = True
    return sums.masked_fill(~is_touched, -torch.inf).view(num_queries, num_items)


def _row_dtype(num_items: int) -> torch.dtype:
    if num_items > MOST_ITEMS:
        raise ValueError(f"an inverted index must have at most {MOST_ITEMS} items, got {num_items}: use more shards")
    return torch.int32 if num_items <= MOST_NARROW_ITEMS else torch.int64
