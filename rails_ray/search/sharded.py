"""One corpus in several parts: how their answers become one.

A shard holds consecutive item rows and answers with the rows of the whole corpus. As each shard gives its own k best,
the k best of all answers are the corpus's, ties included (`top_k`); so are all items at or above a threshold.
No item that any shard passed over scores above the largest of the shards' bounds, so exactness survives: the last
merged score is compared with that.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from rails_ray.kernels import top_k
from rails_ray.kernels.top_k import TopK
from rails_ray.search.spec import SearchResult, SearchSpec

SAMPLED = 16  # one of so many scores of a list is looked at


def of_corpus(found: SearchResult, first_row: int) -> SearchResult:
    """Translate what a shard found, in the host's memory, to rows of the corpus.

    Args:
        first_row: the shard's first row in the corpus.
    """
    item_rows = np.where(found.scores.numpy() > -np.inf, found.item_rows.numpy() + first_row, 0)
    return replace(found, item_rows=torch.from_numpy(item_rows))


def merge(parts: Sequence[SearchResult], spec: SearchSpec, num_left: Int[Tensor, " B"]) -> SearchResult:
    """The corpus's answer, from all shards' answers to the same question, in the order of their rows and with rows of
    the corpus. It has as many places as its longest list needs. All are in the host's memory, where numpy takes a
    fraction of torch's time for arrays so short.

    Args:
        num_left: items of these shards that the answer to each query may hold.
    """
    most = spec.k + 1  # the last tells whether more were left
    leading = _leading(parts, most)
    is_little = sum(part.k for part in leading) <= 2 * most
    best = top_k.merge_in_row_order(leading, most) if is_little else top_k.merge(leading, most)
    scores = best.scores.numpy()
    reach = np.full(len(scores), np.finfo(np.float32).min)
    if spec.threshold is not None:
        reach = np.maximum(spec.threshold.float().numpy(), reach)
    num_above = (scores >= reach[:, None]).sum(axis=1)
    scores = np.where(np.arange(best.k) < num_above.clip(spec.least, spec.k)[:, None], scores, np.float32(-np.inf))
    is_there = scores > -np.inf
    longest = int(is_there.sum(axis=1).max()) if len(scores) else 0
    if spec.threshold is None:  # shards that found fewer than k, as in the buckets of `inverted`, may fill a list
        is_truncated = (num_above >= spec.k) & (num_left.numpy() > spec.k)
    else:
        is_truncated = np.any([part.is_truncated.numpy() for part in parts], axis=0) | (num_above > spec.k)
    return SearchResult(
        scores=torch.from_numpy(scores[:, :longest]),
        item_rows=torch.from_numpy(np.where(is_there, best.item_rows.numpy(), 0)[:, :longest]),
        bound=torch.from_numpy(np.max([part.bound.numpy() for part in parts], axis=0)),
        is_truncated=torch.from_numpy(is_truncated),
        num_scored=torch.from_numpy(np.sum([part.num_scored.numpy() for part in parts], axis=0)),
        reasons=[next(filter(None, own), None) for own in zip(*(part.reasons for part in parts), strict=True)],
    )


def _leading(parts: Sequence[TopK], k: int) -> Sequence[TopK]:
    """The parts without most of the places that hold none of the k best of all.

    Each sample, every SAMPLED-th score of a part, has SAMPLED - 1 scores before it that are not lower. So at least k
    scores reach the floor, the (k / SAMPLED)-th best of all samples, and a part is read as far as its samples reach it.
    """
    num_needed = -(-k // SAMPLED)
    if sum(part.k // SAMPLED for part in parts) <= 2 * num_needed or not len(parts[0].scores):
        return parts  # little could be left out
    samples = [part.scores[:, SAMPLED - 1 :: SAMPLED] for part in parts]
    floor = torch.cat(samples, dim=1).topk(num_needed, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    ends = [SAMPLED * (1 + int((own >= floor).sum(dim=1).max())) for own in samples]
    return [TopK(part.scores[:, :end], part.item_rows[:, :end]) for part, end in zip(parts, ends, strict=True)]
