"""One corpus in several parts: how their answers become one.

A shard holds consecutive item rows and answers with the rows of the whole corpus. As each shard gives its own k best,
the k best of all answers are the corpus's, ties included (`top_k`); so are all items at or above a threshold.
No item that any shard passed over scores above the largest of the shards' bounds, so exactness survives: the last
merged score is compared with that.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from rails_ray.kernels import top_k
from rails_ray.kernels.top_k import TopK
from rails_ray.search.scan import trimmed
from rails_ray.search.spec import SearchResult, SearchSpec

SAMPLED = 16  # one of so many scores of a list is looked at


def of_corpus(found: SearchResult, first_row: int) -> SearchResult:
    """Translate what a shard found to rows of the corpus.

    Args:
        first_row: the shard's first row in the corpus.
    """
    is_there = found.scores > -torch.inf
    return replace(found, item_rows=torch.where(is_there, found.item_rows + first_row, 0))


def merge(parts: Sequence[SearchResult], spec: SearchSpec, num_left: Int[Tensor, " B"]) -> SearchResult:
    """The corpus's answer, from all shards' answers to the same question, in the order of their rows and with rows of
    the corpus. It has as many places as its longest list needs.

    Args:
        num_left: items of these shards that the answer to each query may hold.
    """
    most = spec.k + 1  # the last tells whether more were left
    leading = _leading(parts, most)
    is_little = sum(part.k for part in leading) <= 2 * most
    best = top_k.merge_in_row_order(leading, most) if is_little else top_k.merge(leading, most)
    reach = torch.full_like(parts[0].bound, torch.finfo(torch.float32).min)
    if spec.threshold is not None:
        reach = torch.maximum(spec.threshold.float(), reach)
    num_above = (best.scores >= reach[:, None]).sum(dim=1)
    num_kept = num_above.clamp(min=spec.least, max=spec.k)
    place = torch.arange(best.k, device=best.scores.device)
    best = trimmed(TopK(best.scores.masked_fill(place >= num_kept[:, None], -torch.inf), best.item_rows))
    if spec.threshold is None:  # shards that found fewer than k, as in the buckets of `inverted`, may fill a list
        is_truncated = (num_above >= spec.k) & (num_left.to(num_above.device) > spec.k)
    else:
        is_truncated = torch.stack([part.is_truncated for part in parts]).any(dim=0) | (num_above > spec.k)
    return SearchResult(
        scores=best.scores,
        item_rows=best.item_rows.masked_fill(best.scores == -torch.inf, 0),
        bound=torch.stack([part.bound for part in parts]).amax(dim=0),
        is_truncated=is_truncated,
        num_scored=torch.stack([part.num_scored for part in parts]).sum(dim=0),
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
