"""Gates of a trained mixture: what a search will cost, and whether the mixture is one at all.

    H(E[pi])        entropy of the mean gates, in nats: log P if all pairs of components are used alike
    E[H(pi | q, x)] mean entropy of a pair's gates: 0 if each is one-hot
    certified       share of queries whose k best by `per_embedding` are proved to be the k best
    recall          share of the k best by brute force that `average` finds

Gates are those of a query and an item that answers it. Sharp gates make searches by components exact and proofs cheap;
gates that are the same for all pairs make the mixture a dot product.

Source: RAILS, Equation 3 (the two entropies), Section 3.2 and Algorithm 2 (the searches).

Axes: B queries, X items, P pairs of components.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, special

from rails_ray.data.encoding import encode_items
from rails_ray.data.queries import Queries
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import take
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec

NUM_QUERIES = 256  # a share of them is known to .03
K = 100
WIDTHS = SearchParams(num_candidates=2 * K, num_per_embedding=K)


@torch.no_grad()
def measures(model: Model, item_features: Any, queries: Queries) -> dict[str, float]:
    """The four by name, over the first queries; nothing for a similarity without gates.

    k is 100, or all items if there are fewer; `average` takes twice as many candidates, `per_embedding` k by each pair
    of components.
    """
    if model.similarity.num_components == (1, 1) or not len(queries):
        return {}
    some = queries.head(NUM_QUERIES)
    items: Any = encode_items(model, item_features)
    device = items.components.device
    query: Any = model.encode_queries(model.query_features(some.inputs).to(device))
    spec = SearchSpec(min(K, len(items)))
    searcher = ByComponents(model.similarity, items)
    exact = searcher.search(query, spec).item_rows
    by_average = searcher.search(query, spec, "average", WIDTHS).item_rows
    by_component = searcher.search(query, spec, "per_embedding", WIDTHS)
    found = (exact[:, :, None] == by_average[:, None, :]).any(dim=2)
    return {
        **_entropies(_gates(model, query, items, some)),
        "certified_fraction": float((by_component.gap(spec) == 0).float().mean()),
        "recall_of_average": float(found.float().mean()),
    }


def _gates(model: Model, query: Any, items: Any, queries: Queries) -> Tensor:
    """Gates of each query and the first item that answers it [B, P]."""
    first = queries.relevant.rows[np.minimum(queries.relevant.starts[:-1], len(queries.relevant.rows) - 1)]
    rows = torch.from_numpy(np.minimum(first, len(items) - 1)).unsqueeze(1).to(items.components.device)
    gates = model.similarity(query, take(items, rows)).gates
    found: Tensor = gates.squeeze(1)
    return found


def _entropies(gates: Tensor) -> dict[str, float]:
    return {
        "gate_entropy": float(special.entr(gates.mean(dim=0)).sum()),
        "gate_entropy_of_pairs": float(special.entr(gates).sum(dim=1).mean()),
    }
