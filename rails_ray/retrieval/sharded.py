"""One corpus in several parts: what a shard answers, and how the answers become one.

A shard holds consecutive item rows and answers with the rows of the whole corpus. As each shard gives its own k best,
the k best of all answers are those of the corpus, ties included (`top_k`); so are all items at or above a threshold.
No item that any shard passed over scores above the largest of the shards' bounds, so exactness survives: the k-th
merged score is compared with that.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.above import Above, merge_above
from rails_ray.retrieval import Found, FoundAbove, Query, Retriever
from rails_ray.retrieval.certificate import Certificate, all_scored
from rails_ray.similarities.states import take
from rails_ray.top_k import Exclusions, TopK, merge


def search_shard(
    retriever: Retriever[Query],
    num_items: int,
    first_row: int,
    query: Query,
    k: int,
    exclude: Sequence[Iterable[int]],
) -> list[Found]:
    """One result per query, with [1, k'] items, rows those of the corpus; k' = min(k, items of the shard left after
    exclusion), or fewer of a method that finds fewer.

    Args:
        num_items, first_row: of the shard.
        exclude: per query, rows of the shard (from 0) that must not be answered.
    """
    excluded = [sorted(set(rows)) for rows in exclude]
    widths = [min(k, num_items - len(rows)) for rows in excluded]
    results: dict[int, Found] = {}
    for width in set(widths):  # nearly always a single one
        queries = [number for number, own in enumerate(widths) if own == width]
        if width == 0:
            nothing = TopK(torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64))
            found = Found(nothing, all_scored(len(queries)), torch.zeros(len(queries), dtype=torch.int64))
        else:
            part = query if len(queries) == len(query) else take(query, queries)
            exclusions = Exclusions.of([excluded[number] for number in queries]) if any(excluded) else None
            found = retriever.search(part, width, exclusions)
        for line, (number, num_found) in enumerate(zip(queries, found.top_k.num_found().tolist(), strict=True)):
            results[number] = _of_query(found, line, num_found, first_row)
    return [results[number] for number in range(len(excluded))]


def _of_query(found: Found, line: int, num_found: int, first_row: int) -> Found:
    own = slice(line, line + 1)
    top_k = TopK(found.top_k.scores[own, :num_found], found.top_k.item_rows[own, :num_found] + first_row)
    return Found(top_k, _certificate_of(found, line), found.num_scored[own])


def search_shard_above(
    retriever: Retriever[Query],
    first_row: int,
    query: Query,
    threshold: Float[Tensor, " B"],
    cap: int,
    at_least: int,
    exclude: Sequence[Iterable[int]],
) -> list[FoundAbove]:
    """One result per query, with as many items [1, n] as it has in the shard, rows those of the corpus.

    Args:
        exclude: per query, rows of the shard (from 0) that must not be answered.
    """
    excluded = [sorted(set(rows)) for rows in exclude]
    exclusions = Exclusions.of(excluded) if any(excluded) else None
    found = retriever.search_above(query, threshold, cap, exclusions, at_least)
    num_found = found.above.top_k.num_found().tolist()
    return [_of_query_above(found, line, num, first_row) for line, num in enumerate(num_found)]


def _of_query_above(found: FoundAbove, line: int, num_found: int, first_row: int) -> FoundAbove:
    own, top_k = slice(line, line + 1), found.above.top_k
    items = TopK(top_k.scores[own, :num_found], top_k.item_rows[own, :num_found] + first_row)
    above = Above(items, found.above.is_truncated[own])
    return FoundAbove(above, _certificate_of(found, line), found.num_scored[own])


def _certificate_of(found: Found | FoundAbove, line: int) -> Certificate:
    bound = found.certificate.bound
    return Certificate(None if bound is None else bound[line : line + 1], found.certificate.reason)


def merge_shards(answers: Sequence[Sequence[Found]], k: int, may_be_short: bool = False) -> list[Found]:
    """The answer of each query, with [1, k] items, from the answers of all shards.

    Args:
        may_be_short: of a method that may find fewer than k items, which then are the answer.

    Raises:
        ValueError: if the shards together found fewer than k items, unless they may.
    """
    merged = [_merged(list(parts), k) for parts in zip(*answers, strict=True)]
    if may_be_short:
        return merged
    fewest = min((found.top_k.k for found in merged), default=k)
    if fewest < k:
        raise ValueError(f"k must be at most the {fewest} items searched and not excluded, got {k}")
    return merged


def merge_shards_above(
    answers: Sequence[Sequence[FoundAbove]], threshold: Float[Tensor, " B"], cap: int, at_least: int
) -> list[FoundAbove]:
    """The answer of each query, with as many items [1, n] as it has, from the answers of all shards to the same
    question."""
    merged = []
    for line, parts in enumerate(zip(*answers, strict=True)):
        above = merge_above([part.above for part in parts], threshold[line : line + 1], cap, at_least)
        merged.append(FoundAbove(above, _certificate(parts), _num_scored(parts)))
    return merged


def _merged(parts: list[Found], k: int) -> Found:
    return Found(merge([part.top_k for part in parts], k), _certificate(parts), _num_scored(parts))


def _certificate(parts: Sequence[Found | FoundAbove]) -> Certificate:
    bounds = [part.certificate.bound for part in parts]
    known = [bound for bound in bounds if bound is not None]
    if len(known) == len(parts):
        return Certificate(torch.stack(known).amax(dim=0))
    return next(part.certificate for part in parts if part.certificate.bound is None)


def _num_scored(parts: Sequence[Found | FoundAbove]) -> Int[Tensor, " B"]:
    return torch.stack([part.num_scored for part in parts]).sum(dim=0)
