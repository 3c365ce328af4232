"""Why an item scores as it does: the cosines of all pairs of components, and the gates that mix them.

    score(q, x) = sum_pq,px gates[p_q, p_x] * cosines[p_q, p_x]

Axes: B queries, X items, P_Q / P_X components.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.similarities import Similarity
from rails_ray.similarities.states import ItemState, QueryState


class Explained(NamedTuple):
    """Gates are at least 0 and sum to 1 over all pairs of components; a dot product has one pair, with gate 1."""

    scores: Float[Tensor, "B X"]
    cosines: Float[Tensor, "B X P_Q P_X"]
    gates: Float[Tensor, "B X P_Q P_X"]


@torch.no_grad()
def explain(similarity: Similarity, query: QueryState, items: ItemState) -> Explained:
    """The parts of the scores of these items."""
    cosines = torch.einsum("bqd,xpd->bxqp", query.components, items.components)
    scores, gates = similarity(query, items)
    return Explained(scores, cosines, torch.ones_like(cosines) if gates is None else gates.reshape_as(cosines))
