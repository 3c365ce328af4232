"""Hard negatives: the items that the model of now ranks highest for a training query without being right.

They are found by an exact search over the corpus every so many steps, by one worker for all. What was found is part of
a run's checkpoints, so that a run that goes on from one trains against the same items.

Source: Xiong et al., Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval (ANCE).
Differs from the source: training waits for the search, which is exact.

Axes: Q training queries, H hard negatives of a query.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rails_ray.data.batch import FeatureRows
from rails_ray.data.encoding import QUERY_BATCH, encode_items, in_batches
from rails_ray.data.queries import Queries
from rails_ray.modules.model import Model
from rails_ray.search.masks import Exclusions
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec


class Mining(nn.Module):
    """Keeps the hard negatives of every training query, and finds them anew. It holds no weights of the model.

    Args:
        find: finds them by the model of now; `hardest` with all but the model given.
        every: batches between two searches; there are no hard negatives before the first.
        from_first: gives the first worker's tensor to every worker.
        is_first: whether this is the first worker, who searches.
    """

    def __init__(
        self,
        find: Callable[[], Int[Tensor, "Q H"]],
        shape: tuple[int, int],
        every: int,
        *,
        from_first: Callable[[Tensor], Tensor] = lambda found: found,
        is_first: bool = True,
    ) -> None:
        super().__init__()
        self.find = find
        self.every = every
        self.from_first = from_first
        self.is_first = is_first
        self.rows: Tensor
        self.register_buffer("rows", torch.full(shape, -1))

    def at_batch(self, number: int) -> Int[Tensor, "Q H"]:
        """Item rows of the hard negatives that a batch trains against; -1 for none."""
        if number and number % self.every == 0:
            self.rows.copy_(self.from_first(self.find() if self.is_first else self.rows))
        return self.rows.cpu()


@torch.no_grad()
def hardest(
    model: Model, queries: Queries, query_features: FeatureRows, item_features: FeatureRows, num_hard: int
) -> Int[Tensor, "Q H"]:
    """The best items of each query that do not answer it; -1 where the corpus has no more."""
    was_training = model.similarity.training
    model.train(False)
    items: Any = encode_items(model, item_features)
    searcher = ByComponents(model.similarity, items)
    found = []
    for first, batch in in_batches(query_features, model, QUERY_BATCH):
        state: Any = model.encode_queries(batch)
        relevant = [queries.relevant[first + line].tolist() for line in range(len(state))]
        mask = Exclusions.of(relevant)
        best = searcher.search(state, SearchSpec(min(num_hard, len(items)), mask=mask))
        rows = best.item_rows.masked_fill(best.scores == -torch.inf, -1)
        found.append(nn.functional.pad(rows, (0, num_hard - rows.shape[1]), value=-1))
    model.train(was_training)
    return torch.cat(found).cpu()
