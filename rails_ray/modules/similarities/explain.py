"""Why an item scores as it does: the cosines of all pairs of components, and the gates that mix them.

    score(q, x) = sum_pq,px gates[p_q, p_x] * cosines[p_q, p_x]

A sum of look-ups is such a mixture too: each trained chunk's part has the same weight.

Axes: B queries, X items, P_Q / P_X components, K chunks.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.similarities import Similarity
from rails_ray.modules.similarities.look_up import LookUp
from rails_ray.modules.similarities.states import Codes, ItemState, QueryState, Tables, map_tensors


class Explained(NamedTuple):
    """Gates are at least 0 and sum to 1 over all pairs of components; a dot product has one pair, with gate 1."""

    scores: Float[Tensor, "B X"]
    cosines: Float[Tensor, "B X P_Q P_X"]
    gates: Float[Tensor, "B X P_Q P_X"]


@torch.no_grad()
def explain_mixture(similarity: Similarity, query: QueryState, items: ItemState) -> Explained:
    """The parts of the scores of these items."""
    items = map_tensors(lambda tensor: tensor.to(query.components.dtype), items)  # they may be stored in fewer bits
    cosines = torch.einsum("bqd,xpd->bxqp", query.components, items.components)
    scored = similarity(query, items)
    gates = torch.ones_like(cosines) if scored.gates is None else scored.gates.reshape_as(cosines)
    return Explained(scored.scores, cosines, gates)


@torch.no_grad()
def explain_look_ups(similarity: LookUp, query: Tables, items: Codes) -> Explained:
    """The parts of sums of look-ups, with P_Q = 1 and P_X = K; a chunk that is not trained says 0 and has no weight."""
    chunks = torch.arange(items.codes.shape[1], device=items.codes.device)
    of_chunks = query.tables[:, chunks, items.codes.long()].unsqueeze(2)  # [B, X, 1, K]
    is_trained = query.tables.any(dim=2)[:, None, None, :].expand_as(of_chunks)
    num_trained = is_trained.sum(dim=3, keepdim=True).clamp(min=1)
    return Explained(similarity.scores(query, items), of_chunks * num_trained, is_trained / num_trained)
