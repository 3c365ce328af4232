"""A shard in segments: its base, and the items that came later, each with a searcher of its own.

Their answers become one as those of shards do (`sharded.merge`), so what is exact of each is exact of all. A segment
without an index is scanned.

Axes: B queries, X items.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Generic

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.modules.losses import ScoreLogit
from rails_ray.modules.similarities.explain import Explained
from rails_ray.schema.search_params import DEFAULT_PARAMS, SearchParams
from rails_ray.search.masks import Mask
from rails_ray.search.methods import ExactSearch, Query, Retriever
from rails_ray.search.searcher import Searcher
from rails_ray.search.sharded import merge, of_corpus
from rails_ray.search.spec import SearchResult, SearchSpec
from rails_ray.search.started import search_each


class Segmented(Generic[Query]):
    """The contract of `Searcher`.

    Args:
        segments: searchers of consecutive items, the base first; none is empty.
    """

    def __init__(self, segments: Sequence[Searcher[Query]]) -> None:
        self.segments = segments
        self.first_rows = [0, *accumulate(map(len, segments))][:-1]

    @property
    def methods(self) -> tuple[str, ...]:
        """The contract of `Searcher`."""
        return self.segments[0].methods

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    def retriever(self, method: str, params: SearchParams = DEFAULT_PARAMS) -> Retriever[Query]:
        """The contract of `Searcher`."""
        of_segments = [segment.retriever(method, params) for segment in self.segments]
        return _OfSegments(of_segments, self.first_rows, [len(segment) for segment in self.segments])

    def search(
        self, query: Query, spec: SearchSpec, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> SearchResult:
        """The contract of `Searcher`."""
        return self.retriever(method, params).search(query, spec)

    def gathers(
        self, num_left: int, num_queries: int, method: str = "brute_force", params: SearchParams = DEFAULT_PARAMS
    ) -> bool:
        """The contract of `Searcher`: as the base does of as large a share of its items."""
        base = self.segments[0]
        return base.gathers(num_left * len(base) // len(self), num_queries, method, params)

    def some(self, rows: Int[Tensor, " N"]) -> "_SomeOfSegments[Query]":
        """The contract of `Searcher`."""
        found, sizes = list[ExactSearch[Query]](), list[int]()
        ends = torch.searchsorted(rows, torch.tensor(self.first_rows[1:], dtype=torch.int64)).tolist()
        for segment, first, own in zip(self.segments, self.first_rows, rows.tensor_split(ends), strict=True):
            if len(own):
                found.append(segment.some(own - first))
                sizes.append(len(own))
        return _SomeOfSegments(found, [0, *accumulate(sizes)][:-1], sizes)

    def log_sum_exp(self, query: Query, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        """The contract of `Searcher`."""
        return _log_sum_exp(self.segments, self.first_rows, list(map(len, self.segments)), query, logit, mask)

    def explain(self, query: Query, item_rows: Sequence[int]) -> Explained:
        """The contract of `Searcher`."""
        rows = np.asarray(item_rows, np.int64)
        which = np.searchsorted(self.first_rows, rows, side="right") - 1
        order, parts = list[int](), list[Explained]()
        for number, (first, segment) in enumerate(zip(self.first_rows, self.segments, strict=True)):
            places = np.flatnonzero(which == number)
            if len(places) or not number:  # the first also says how empty parts look
                parts.append(segment.explain(query, (rows[places] - first).tolist()))
                order += places.tolist()
        back = torch.tensor(order, dtype=torch.int64).argsort()
        return Explained(*(torch.cat(own, dim=1)[:, back.to(own[0].device)] for own in zip(*parts, strict=True)))


@dataclass(frozen=True)
class _OfSegments(Generic[Query]):
    """The contract of `Retriever`: a method of each segment."""

    retrievers: Sequence[Retriever[Any]]
    first_rows: Sequence[int]
    sizes: Sequence[int]

    @property
    def is_exact(self) -> bool:
        return all(retriever.is_exact for retriever in self.retrievers)

    def search(self, query: Query, spec: SearchSpec) -> SearchResult:
        specs = [
            spec if spec.mask is None else replace(spec, mask=spec.mask.of_items(first, size))
            for first, size in zip(self.first_rows, self.sizes, strict=True)
        ]
        found = search_each(self.retrievers, query, specs)
        # In the host's memory, as merging looks at lists, which are short.
        parts = [of_corpus(part.on("cpu"), first) for part, first in zip(found, self.first_rows, strict=True)]
        threshold = None if spec.threshold is None else spec.threshold.cpu()
        return merge(parts, replace(spec, threshold=threshold), spec.num_left(len(query), sum(self.sizes)))


@dataclass(frozen=True)
class _SomeOfSegments(Generic[Query]):
    """The contract of `ExactSearch`: some items of each segment."""

    scans: Sequence[ExactSearch[Any]]
    first_rows: Sequence[int]
    sizes: Sequence[int]
    is_exact = True

    def search(self, query: Query, spec: SearchSpec) -> SearchResult:
        return _OfSegments[Query](self.scans, self.first_rows, self.sizes).search(query, spec)

    def log_sum_exp(self, query: Query, logit: ScoreLogit, mask: Mask | None = None) -> Float[Tensor, " B"]:
        return _log_sum_exp(self.scans, self.first_rows, self.sizes, query, logit, mask)


def _log_sum_exp(
    scans: Sequence[Any],
    first_rows: Sequence[int],
    sizes: Sequence[int],
    query: Any,
    logit: ScoreLogit,
    mask: Mask | None,
) -> Float[Tensor, " B"]:
    """That of all segments together."""
    parts = [
        scan.log_sum_exp(query, logit, None if mask is None else mask.of_items(first, size))
        for scan, first, size in zip(scans, first_rows, sizes, strict=True)
    ]
    return torch.stack(parts).logsumexp(dim=0)
