"""The second stage of the approximate methods: the scores of the candidates, and the k best of them.

Source: RAILS, Algorithm 2, line 3.

Axes: B queries, C candidates.
"""

import math
from dataclasses import replace

import torch
from jaxtyping import Bool, Int
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
    num_candidates = item_rows.shape[1]
    items = replace(items, average=None)  # which no similarity reads
    size = max(BLOCK_PAIRS // max(num_candidates * math.prod(similarity.num_components), 1), 1)
    parts = []
    for first in range(0, max(len(query), 1), size):
        block = slice(first, first + size)
        scores = similarity.scores(take(query, block), take(items, item_rows[block]))  # [b, C]
        parts.append(select(scores.masked_fill(~is_there[block], -torch.inf), k, item_rows[block]))
    return TopK(torch.cat([part.scores for part in parts]), torch.cat([part.item_rows for part in parts]))
