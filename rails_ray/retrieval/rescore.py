"""The second stage of the approximate methods: the scores of the candidates.

Source: RAILS, Algorithm 2, line 3.

Axes: B queries, C candidates.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.retrieval.candidates import Candidates
from rails_ray.similarities import Scorer
from rails_ray.similarities.states import QueryState, Searched, take

BLOCK_PAIRS = 2**20  # queries * candidates * P of a block: what is gathered for it stays within some 50 MB


def candidate_scores(
    similarity: Scorer,
    items: Searched,
    query: QueryState,
    found: Candidates,
    floor: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, "B C"]:
    """The score of each candidate; -inf at places that hold none.

    Args:
        floor: a candidate whose score cannot reach it may get -inf too.
    """
    size = max(BLOCK_PAIRS // max(found.item_rows.shape[1] * math.prod(similarity.num_components), 1), 1)
    scores = []
    for first in range(0, max(len(query), 1), size):
        block = slice(first, first + size)
        least = None if floor is None else floor[block]
        scores.append(similarity.scores(take(query, block), items.taken(found.item_rows[block]), least))
    return torch.cat(scores).masked_fill(~found.is_there, -torch.inf)
