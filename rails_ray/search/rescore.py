"""The second stage of the approximate methods: the scores of the candidates.

Source: RAILS, Algorithm 2, line 3.

Axes: B queries, C candidates.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.states import ItemState, QueryState, Searched, take
from rails_ray.search.candidates import Candidates
from rails_ray.stopwatch import part

BLOCK_PAIRS = 2**20  # queries * candidates * P of a block: what is gathered for it stays within some 50 MB


@part("score")
def candidate_scores(
    similarity: Scorer,
    items: Searched,
    query: QueryState,
    found: Candidates,
    floor: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, "B C"]:
    """The score of each candidate; -inf at places that hold none.

    Args:
        floor: a candidate of a mixture whose score cannot reach it gets -inf too.
    """
    scores = [
        similarity.scores(take(query, block), own, None if floor is None else floor[block])
        for block, own in candidate_blocks(similarity, items, found.item_rows)
    ]
    return torch.cat(scores).masked_fill(~found.is_there, -torch.inf)


def candidate_blocks(
    similarity: Scorer, items: Searched, item_rows: Int[Tensor, "B C"]
) -> Iterator[tuple[slice, ItemState]]:
    """(Queries, their candidates [b, C]) of each block; at least one block, also if there is no query."""
    size = max(BLOCK_PAIRS // max(item_rows.shape[1] * math.prod(similarity.num_components), 1), 1)
    for first in range(0, max(len(item_rows), 1), size):
        block = slice(first, first + size)
        yield block, items.taken(item_rows[block])
