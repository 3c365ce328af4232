"""The first stage of the approximate methods: inner-product searches that find items worth scoring.

    per embedding:  for each p the items with the largest <f_pq(q), g_px(x)>
    average:        the items with the largest <mean_pq f_pq(q), mean_px g_px(x)>, the mean of all P cosines
    surrogate:      the items with the largest <psi(q), w_x>, which was fitted to the score (`reranking.surrogate`)

Source: RAILS, Section 3.2 and Algorithm 2.
Differs from the source: means where the paper sums, so that first-stage scores lie in [-1, 1] too; the order is equal.

An index that is not exact may pass over any item; the candidates then say so.

Axes: B queries, X items, C candidates, n candidates of one list, d width, P_Q / P_X components, P = P_Q * P_X.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rails_ray.kernels.top_k import distinct
from rails_ray.modules.similarities.states import QueryState, Searched
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.indexes.flat import FlatIndex
from rails_ray.search.masks import Mask
from rails_ray.search.spec import SearchSpec, reasons_of

AVERAGE = "average"  # name of the index over mean components
SURROGATE = "surrogate"  # name of the index over vectors that stand for scores
TOGETHER = "together"  # name of the index over all components of an item, one after the other
BLOCK_ITEMS = 2**16  # whose lengths are computed at once
BY_SURROGATE = "candidates by a surrogate's vectors: what they leave out may have any score"
NO_CERTIFICATE = "candidates by the average component alone: what it leaves out may have any cosine"


def component_name(number: int) -> str:
    """Name of the index over a component of items."""
    return f"component-{number}"


def vectors_of(items: Searched, name: str) -> Float[Tensor, "X _"]:
    """The vectors of items that the index of a name holds.

    Raises:
        ValueError: if the items have no average.
    """
    if name == SURROGATE:
        assert items.surrogate is not None
        return items.surrogate
    if name == TOGETHER:
        together = items.together()
        assert together is not None
        return together
    vectors = items.vectors(None if name == AVERAGE else int(name.rpartition("-")[2]))
    if vectors is None:
        raise ValueError(
            "methods average and combined need the column 'average' of the index, got one without it: "
            "encode a new version, or take another method"
        )
    return vectors


@dataclass(frozen=True)
class Candidates:
    """
    item_rows, is_there: the candidates of each query, each once.
    last_cosine: max_p t_p, the largest cosine that an item outside all lists can have; -inf if the lists hold all
        items, inf if nothing is known.
    is_best: whether the cosine is the score and a list holds the best items by it, as its index tells by its own
        arithmetic: what the search asked of the index is answered, and nothing else.
    is_exhausted: whether longer lists would hold no more items.
    reasons: of each query of which nothing is known, why.
    """

    item_rows: Int[Tensor, "B C"]
    is_there: Bool[Tensor, "B C"]
    last_cosine: Float[Tensor, " B"]
    is_best: Bool[Tensor, " B"]
    is_exhausted: Bool[Tensor, " B"]
    reasons: Sequence[str | None]


class PerEmbedding:
    """The first items of each pair of components."""

    def __init__(self, items: Searched, indexes: Mapping[str, VectorIndex]) -> None:
        names = [component_name(number) for number in range(items.num_components)]
        if len(names) == 1 and AVERAGE in indexes:  # the only component is its own average
            names = [AVERAGE]
        self.indexes = [indexes.get(name) or FlatIndex(vectors_of(items, name)) for name in names]

    @property
    def is_exact(self) -> bool:
        return all(index.is_exact for index in self.indexes)

    def __call__(
        self,
        query: QueryState,
        width: int,
        mask: Mask | None = None,
        params: SearchParams | None = None,
        at_least: int = 0,
    ) -> Candidates:
        """The union of `width` items (or all) per pair of components.

        Args:
            at_least: as `SearchSpec` has it, of each list.
        """
        num_queries, num_components, _ = query.components.shape
        vectors = query.components.flatten(end_dim=1)  # [B * P_Q, d]
        spec = SearchSpec(
            width, at_least=min(at_least, width), mask=None if mask is None else mask.repeat_each(num_components)
        )
        found = [index.search(vectors, spec, params) for index in self.indexes]
        rows = torch.cat([one.item_rows.view(num_queries, num_components * one.k) for one in found], dim=1)
        cosines = torch.cat([one.scores.view(num_queries, num_components * one.k) for one in found], dim=1)
        shape = (len(found), num_queries, num_components)
        last = torch.stack([one.ceiling(spec) for one in found]).view(shape).amax(dim=(0, 2))
        is_best = torch.zeros_like(last, dtype=torch.bool)
        if len(found) == num_components == 1:
            is_best = found[0].bound == -torch.inf
        is_exhausted = torch.stack([one.num_found() < width for one in found]).view(shape).all(dim=2).all(dim=0)
        reasons = [
            next((reason for one in found for reason in one.reasons[first : first + num_components] if reason), None)
            for first in range(0, len(vectors), num_components)
        ]
        return Candidates(*distinct(rows, cosines > -torch.inf), last, is_best, is_exhausted, reasons)


VectorOf = Callable[[QueryState], Float[Tensor, "B _"]]


class ByAverage:
    """The first items by the mean component.

    Args:
        vector_of: gives a query's vector; by default its mean component.
        reason: why nothing is known of other items.
    """

    def __init__(
        self,
        items: Searched,
        indexes: Mapping[str, VectorIndex],
        vector_of: VectorOf = attrgetter("average"),
        reason: str = NO_CERTIFICATE,
    ) -> None:
        self.index = indexes.get(AVERAGE) or FlatIndex(vectors_of(items, AVERAGE))
        self.vector_of = vector_of
        self.reason = reason
        self.is_only_component = items.num_components == 1

    @property
    def is_exact(self) -> bool:
        return self.index.is_exact

    @property
    def error(self) -> float:
        """How far a score of the index may be from the mean cosine."""
        return self.index.error

    def __call__(
        self,
        query: QueryState,
        width: int,
        mask: Mask | None = None,
        params: SearchParams | None = None,
        at_least: int = 0,
    ) -> Candidates:
        """`width` items (or all); nothing is known about the other items' cosines, unless there is one component."""
        return self.spec(query, SearchSpec(width, at_least=min(at_least, width), mask=mask), params)

    def spec(self, query: QueryState, spec: SearchSpec, params: SearchParams | None = None) -> Candidates:
        """Search the index, scored by the mean cosine."""
        found = self.index.search(self.vector_of(query), spec, params)
        is_score = self.is_only_component and query.components.shape[1] == 1
        is_there, is_exhausted = found.scores > -torch.inf, found.num_found() < spec.k
        last, is_best, reasons = found.ceiling(spec), found.bound == -torch.inf, found.reasons
        if not is_score:
            last, is_best = torch.where(last == -torch.inf, last, torch.inf), torch.zeros_like(is_best)
            reasons = [own or why for own, why in zip(reasons, reasons_of(last, self.reason), strict=True)]
        return Candidates(found.item_rows, is_there, last, is_best, is_exhausted, reasons)


class FirstStage:
    """The indexes of the first stages, made once for all searches of some items.

    Args:
        indexes: indexes that were built before, by name; a flat one that shares the items' memory stands for each of
            the others.
        vector_of, reason: as `ByAverage` has them.
        longest: the length of the longest component of any item.

    `together` is the index over all components of an item, one after the other; None if items are read back and no such
    index of their codes is given.
    """

    def __init__(
        self,
        items: Searched,
        indexes: Mapping[str, VectorIndex] | None = None,
        vector_of: VectorOf = attrgetter("average"),
        reason: str = NO_CERTIFICATE,
        *,
        longest: float = 1.0,
    ) -> None:
        self.indexes = indexes or {}
        self.longest = longest
        self.per_embedding = PerEmbedding(items, self.indexes)
        self.items = items
        has_average = AVERAGE in self.indexes or items.vectors(None) is not None
        self._by_average = ByAverage(items, self.indexes, vector_of, reason) if has_average else None
        self.together = self.indexes.get(TOGETHER)
        if self.together is None and items.together() is not None:
            self.together = FlatIndex(vectors_of(items, TOGETHER))

    @property
    def by_average(self) -> ByAverage:
        """Raises:
        ValueError: if the items have no average.
        """
        return self._by_average or ByAverage(self.items, self.indexes)

    @property
    def has_average(self) -> bool:
        """Return whether `by_average` is there."""
        return self._by_average is not None


def union(first: Candidates, second: Candidates) -> Candidates:
    """The candidates of either; an item outside the union is outside both."""
    rows = torch.cat([first.item_rows, second.item_rows], dim=1)
    is_there = torch.cat([first.is_there, second.is_there], dim=1)
    last = torch.minimum(first.last_cosine, second.last_cosine)
    is_best, is_exhausted = first.is_best & second.is_best, first.is_exhausted & second.is_exhausted
    is_unknown = zip(last.isposinf().tolist(), first.reasons, second.reasons, strict=True)
    reasons = [(own or other) if unknown else None for unknown, own, other in is_unknown]
    return Candidates(*distinct(rows, is_there), last, is_best, is_exhausted, reasons)


def chosen(is_first: Bool[Tensor, " B"], first: Candidates, second: Candidates) -> Candidates:
    """The first candidates of some queries, and the second of the others."""
    width, which = max(first.item_rows.shape[1], second.item_rows.shape[1]), is_first.tolist()

    def widened(own: Tensor) -> Tensor:
        return F.pad(own, (0, width - own.shape[1]))

    return Candidates(
        torch.where(is_first[:, None], widened(first.item_rows), widened(second.item_rows)),
        torch.where(is_first[:, None], widened(first.is_there), widened(second.is_there)),
        torch.where(is_first, first.last_cosine, second.last_cosine),
        torch.where(is_first, first.is_best, second.is_best),
        torch.where(is_first, first.is_exhausted, second.is_exhausted),
        [(own if is_own else other) for is_own, own, other in zip(which, first.reasons, second.reasons, strict=True)],
    )


def longest_component(items: Searched) -> float:
    """The length of the longest component of any item."""
    size = min(BLOCK_ITEMS, items.most_at_once)
    blocks = (items.taken(slice(first, first + size)).components for first in range(0, len(items), size))
    return max((float(block.float().norm(dim=-1).max()) for block in blocks), default=0.0)
