"""The first stage of the approximate methods: inner-product searches that find items worth scoring.

    per embedding:  for each p the items with the largest <f_pq(q), g_px(x)>
    average:        the items with the largest <mean_pq f_pq(q), mean_px g_px(x)>, the mean of all P cosines

Source: RAILS, Section 3.2 and Algorithm 2.
Differs from the source: means where the paper sums, so that first-stage scores lie in [-1, 1] too; the order is equal.

Axes: B queries, X items, C candidates, n candidates of one list, P_Q / P_X components, P = P_Q * P_X.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rails_ray.indexes.flat import FlatIndex
from rails_ray.masks import Mask
from rails_ray.similarities.states import ItemState, QueryState
from rails_ray.top_k import distinct
from rails_ray.wanted import Wanted


@dataclass(frozen=True)
class Candidates:
    """
    item_rows, is_there: the candidates of each query, each once.
    last_cosine: max_p t_p, the largest cosine that an item outside all lists can have; -inf if the lists hold all
        items, inf if nothing is known.
    """

    item_rows: Int[Tensor, "B C"]
    is_there: Bool[Tensor, "B C"]
    last_cosine: Float[Tensor, " B"]


class PerEmbedding:
    """The first items of each pair of components."""

    def __init__(self, items: ItemState) -> None:
        self.indexes = [FlatIndex(items.components[:, number]) for number in range(items.components.shape[1])]

    def __call__(self, query: QueryState, width: int, mask: Mask | None = None) -> Candidates:
        """The union of `width` items (or all) per pair of components."""
        num_queries, num_components, _ = query.components.shape
        vectors = query.components.flatten(end_dim=1)  # [B * P_Q, d]
        wanted = Wanted(width, mask=None if mask is None else mask.repeat_each(num_components))
        found = [index.search(vectors, wanted) for index in self.indexes]
        width, num_items = found[0].k, len(self.indexes[0].vectors)
        each = (num_queries, num_components, width)
        cosines = torch.cat([one.scores.view(each) for one in found], dim=1)  # [B, P, n]
        rows = torch.cat([one.item_rows.view(each) for one in found], dim=1)
        last = torch.full((num_queries,), -torch.inf, device=cosines.device)
        if width < num_items:
            last = cosines[:, :, -1].amax(dim=1)
        return Candidates(*distinct(rows.flatten(start_dim=1), cosines.flatten(start_dim=1) > -torch.inf), last)


class ByAverage:
    """The first items by the mean component."""

    def __init__(self, items: ItemState) -> None:
        if items.average is None:
            raise ValueError(
                "methods average and combined need the column 'average' of the index, got one without it: "
                "encode a new version, or take another method"
            )
        self.index = FlatIndex(items.average)

    def __call__(self, query: QueryState, width: int, mask: Mask | None = None) -> Candidates:
        """`width` items (or all); nothing is known about the other items' cosines."""
        num_items = len(self.index.vectors)
        found = self.index.search(query.average, Wanted(width, mask=mask))
        last = torch.full((len(query),), torch.inf if width < num_items else -torch.inf, device=found.scores.device)
        return Candidates(found.item_rows, found.scores > -torch.inf, last)


class FirstStage:
    """The indexes of the first stages, made once for all searches of some items. They share the memory of the items."""

    def __init__(self, items: ItemState) -> None:
        self.per_embedding = PerEmbedding(items)
        self.items = items
        self._by_average = None if items.average is None else ByAverage(items)

    @property
    def by_average(self) -> ByAverage:
        """Raises:
        ValueError: if the items have no average.
        """
        return self._by_average or ByAverage(self.items)


def union(first: Candidates, second: Candidates) -> Candidates:
    """The candidates of either; an item outside the union is outside both."""
    rows = torch.cat([first.item_rows, second.item_rows], dim=1)
    is_there = torch.cat([first.is_there, second.is_there], dim=1)
    return Candidates(*distinct(rows, is_there), torch.minimum(first.last_cosine, second.last_cosine))
