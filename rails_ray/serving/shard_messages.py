"""Questions and answers that routers and shards exchange, in a form that travels.

Axes: B queries, P_Q / P_X components, D width of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.item_ids import ItemId
from rails_ray.kernels.uploads import upload
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.masks import Mask
from rails_ray.search.spec import SearchResult, SearchSpec
from rails_ray.serving.scope import EVERYTHING, Scope


@dataclass(frozen=True)
class ShardRequest:
    """The question to all shards for a batch of queries, in a form that travels: a method, and its `SearchSpec`.

    params: how hard to search.
    k: most items for each query.
    threshold: lowest score wanted for each query [B]; None for the k best, whatever their scores.
    at_least: items wanted whatever their scores, with a threshold.
    for_ranker: whether answers hold what a heavy ranker reads of each item.
    with_vectors: whether they hold each item's vector.
    scope: which items may be found, beside those that each query excludes.
    fields: attributes that answers hold of each item.
    """

    method: str
    params: SearchParams
    k: int
    threshold: NDArray[np.float32] | None = None
    at_least: int = 0
    for_ranker: bool = False
    with_vectors: bool = False
    scope: Scope = EVERYTHING
    fields: Sequence[str] = ()

    def of_queries(self, numbers: Sequence[int]) -> "ShardRequest":
        """The question for some queries, as a batch of their own."""
        threshold = None if self.threshold is None else self.threshold[list(numbers)]
        return replace(self, threshold=threshold, scope=self.scope.of_queries(numbers))

    def spec(self, mask: Mask | None = None, device: str | None = None) -> SearchSpec:
        """Compute what a search on a device must find."""
        threshold = None if self.threshold is None else torch.tensor(self.threshold)
        spec = SearchSpec(self.k, threshold, self.at_least, mask)  # checks it, before it is on a GPU
        return spec if threshold is None else replace(spec, threshold=upload(threshold, device or "cpu"))


@dataclass(frozen=True)
class ShardResponse:
    """
    found: the items found, by rows of the whole corpus.
    item_ids: ids of each query's items in `found`.
    titles: titles of these items; None if the index has none.
    num_searched: items of the shard that each query could find, without the excluded ones [B].
    texts, vectors: those of these items, if they are wanted; vectors in one array for each query [n, D].
    num_excluded, num_included: how many ids that each query excludes, or includes, name an item of the shard [B]; None
        if nobody counted.
    fields: attributes of these items, by name; None if none are wanted.
    seconds: how long the search took to find candidates and to score them; nothing if nobody says.
    """

    found: SearchResult
    item_ids: list[list[ItemId]]
    titles: list[list[str]] | None
    num_searched: NDArray[np.int64]
    texts: list[list[str]] | None = None
    vectors: list[NDArray[np.float32]] | None = None
    num_excluded: NDArray[np.int64] | None = None
    num_included: NDArray[np.int64] | None = None
    fields: list[list[dict[str, Any]]] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardItems:
    """
    item_ids: those of some items that the shard holds and a search may find.
    fields: their attributes, by name; None if none are wanted.
    """

    item_ids: list[ItemId]
    fields: list[dict[str, Any]] | None


@dataclass(frozen=True)
class ShardExplanation:
    """
    items: the requested items that the shard holds.
    titles: their titles; None if the index has none.
    scores: their scores.
    cosines, gates: [P_Q][P_X] for each item.
    """

    items: list[ItemId]
    titles: list[str] | None
    scores: list[float]
    cosines: list[list[list[float]]]
    gates: list[list[list[float]]]
