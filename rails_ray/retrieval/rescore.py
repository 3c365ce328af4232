"""The second stage of the approximate methods: the scores of the candidates, and the best of them.

Source: RAILS, Algorithm 2, line 3.

Axes: B queries, C candidates.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rails_ray.similarities import Similarity
from rails_ray.similarities.states import ItemState, QueryState, take
from rails_ray.top_k import TopK, select

BLOCK_PAIRS = 2**20  # queries * candidates * P of a block: what is gathered for it stays within some 50 MB


def rescore(
    similarity: Similarity,
    items: ItemState,
    query: QueryState,
    item_rows: Int[Tensor, "B C"],
    is_there: Bool[Tensor, "B C"],
    k: int,
) -> TopK:
    """The k best candidates, each of which stands in its line once.

    Args:
        is_there: which places hold a candidate.
    """
    blocks = _scores(similarity, items, query, item_rows, is_there)
    parts = [select(scores, k, item_rows[block]) for block, scores in blocks]
    return TopK(torch.cat([part.scores for part in parts]), torch.cat([part.item_rows for part in parts]))


def candidate_scores(
    similarity: Similarity,
    items: ItemState,
    query: QueryState,
    item_rows: Int[Tensor, "B C"],
    is_there: Bool[Tensor, "B C"],
    floor: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, "B C"]:
    """The score of each candidate; -inf at places that hold none.

    Args:
        floor: a candidate whose score cannot reach it may get -inf too.
    """
    return torch.cat([scores for _, scores in _scores(similarity, items, query, item_rows, is_there, floor)])


def _scores(
    similarity: Similarity,
    items: ItemState,
    query: QueryState,
    item_rows: Int[Tensor, "B C"],
    is_there: Bool[Tensor, "B C"],
    floor: Float[Tensor, " B"] | None = None,
) -> Iterator[tuple[slice, Float[Tensor, "b C"]]]:
    """Block by block of queries."""
    num_candidates = item_rows.shape[1]
    items = replace(items, average=None)  # which no similarity reads
    size = max(BLOCK_PAIRS // max(num_candidates * math.prod(similarity.num_components), 1), 1)
    for first in range(0, max(len(query), 1), size):
        block = slice(first, first + size)
        least = None if floor is None else floor[block]
        scores = similarity.scores(take(query, block), take(items, item_rows[block]), least)
        yield block, scores.masked_fill(~is_there[block], -torch.inf)
