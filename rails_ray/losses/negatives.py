"""Which items a query is trained against, and which of them to hide.

Axes: B queries, N items of the batch, M relevant pairs.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def hidden_items(
    item_rows: Int[Tensor, " N"],
    positive: Int[Tensor, " B"],
    query: Int[Tensor, " M"],
    relevant_row: Int[Tensor, " M"],
) -> Bool[Tensor, "B N"]:
    """Items of the batch that are relevant to a query and not its positive: accidental hits, no negatives of it.

    Args:
        item_rows: of the items of the batch, repeats allowed.
        positive: column of each query's positive.
        query, relevant_row: the relevant pairs of the batch: query number in 0 .. B - 1 and item row.
    """
    num_queries = len(positive)
    distinct, place = item_rows.unique(return_inverse=True)
    at = torch.searchsorted(distinct, relevant_row).clamp(max=len(distinct) - 1)
    is_hit = distinct[at] == relevant_row
    hits = torch.zeros(num_queries, len(distinct), dtype=torch.bool)
    hits[query[is_hit], at[is_hit]] = True
    hidden = hits[:, place]
    hidden[torch.arange(num_queries), positive] = False
    return hidden
