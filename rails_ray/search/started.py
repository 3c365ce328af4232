"""Searches that have started on a GPU, several at once, before the host looks at what they computed.

A GPU runs behind its host, and to look at a number is to wait for all that was started before it. So a search says what
must be looked at in a few flags, and those of all searches are looked at together: of segments, of blocks of queries.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from rails_ray.search.methods import ExactSearch, Retriever
from rails_ray.search.spec import SearchResult, SearchSpec, joined
from rails_ray.stopwatch import part

Query = TypeVar("Query", contravariant=True)


@runtime_checkable
class Started(Protocol):
    """Search that has started, and whose flags the host has not read."""

    @property
    def flags(self) -> Int[Tensor, " F"]:
        """Numbers that the host must know."""

    def finish(self, flags: Sequence[int]) -> SearchResult:
        """The answer, by its flags."""


@runtime_checkable
class Starts(Protocol[Query]):
    """Scan that a GPU can start."""

    def begin(self, query: Query, spec: SearchSpec) -> list[Started] | None:
        """Start a search, in blocks of queries, checked; None if it is for `search` to do, without a GPU or without
        anything to scan."""


@torch.no_grad()
def search_each(
    scans: Sequence[Retriever[Any] | ExactSearch[Any]], query: Any, specs: Sequence[SearchSpec]
) -> list[SearchResult]:
    """Search by several scans. All that can be are started before the host looks, once, at what they computed."""
    pairs = list(zip(scans, specs, strict=True))
    begun = [begin(scan, query, spec) for scan, spec in pairs]
    others = [scan.search(query, spec) if own is None else None for (scan, spec), own in zip(pairs, begun, strict=True)]
    read = iter(finished([own for own in begun if own is not None]))
    return [next(read) if found is None else found for found in others]


@part("score")
def begin(scan: Retriever[Any] | ExactSearch[Any], query: Any, spec: SearchSpec) -> list[Started] | None:
    """Start a search if it can be; else None."""
    return scan.begin(query, spec) if isinstance(scan, Starts) else None


@part("score")
def finished(searches: Sequence[Sequence[Started]]) -> list[SearchResult]:
    """The answer to each search, of which all blocks have started."""
    flags = [block.flags for blocks in searches for block in blocks]
    read = iter(torch.cat(flags).tolist() if any(map(len, flags)) else ())
    found = list[SearchResult]()
    for blocks in searches:
        parts = [block.finish([next(read) for _ in range(len(block.flags))]) for block in blocks]
        found.append(parts[0] if len(parts) == 1 else joined(parts))
    return found
