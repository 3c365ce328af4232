"""One corpus in several parts: what a shard answers, and how the answers become one.

A shard holds consecutive item rows and answers with the rows of the whole corpus. As each shard gives its own k best,
the k best of all answers are those of the corpus, ties included (`top_k`). No item that any shard passed over scores
above the largest of the shards' bounds, so exactness survives: the k-th merged score is compared with that.
"""

from collections.abc import Iterable, Sequence

import torch

from rails_ray.retrieval import Found, Retriever
from rails_ray.retrieval.certificate import Certificate, all_scored
from rails_ray.similarities.states import QueryState, take
from rails_ray.top_k import Exclusions, TopK, merge


def search_shard(
    retriever: Retriever,
    num_items: int,
    first_row: int,
    query: QueryState,
    k: int,
    exclude: Sequence[Iterable[int]],
) -> list[Found]:
    """One result per query, with [1, k'] items, k' = min(k, items of the shard left after exclusion), rows those of
    the corpus.

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
        for line, number in enumerate(queries):
            results[number] = _of_query(found, line, first_row)
    return [results[number] for number in range(len(excluded))]


def _of_query(found: Found, line: int, first_row: int) -> Found:
    own = slice(line, line + 1)
    bound = found.certificate.bound
    return Found(
        TopK(found.top_k.scores[own], found.top_k.item_rows[own] + first_row),
        Certificate(None if bound is None else bound[own], found.certificate.reason),
        found.num_scored[own],
    )


def merge_shards(answers: Sequence[Sequence[Found]], k: int) -> list[Found]:
    """The answer of each query, with [1, k] items, from the answers of all shards.

    Raises:
        ValueError: if the shards together hold fewer than k items that are not excluded.
    """
    merged = [_merged(list(parts), k) for parts in zip(*answers, strict=True)]
    fewest = min((found.top_k.k for found in merged), default=k)
    if fewest < k:
        raise ValueError(f"k must be at most the {fewest} items searched and not excluded, got {k}")
    return merged


def _merged(parts: list[Found], k: int) -> Found:
    bounds = [part.certificate.bound for part in parts]
    known = [bound for bound in bounds if bound is not None]
    if len(known) == len(parts):
        certificate = Certificate(torch.stack(known).amax(dim=0))
    else:
        certificate = next(part.certificate for part in parts if part.certificate.bound is None)
    num_scored = torch.stack([part.num_scored for part in parts]).sum(dim=0)
    return Found(merge([part.top_k for part in parts], k), certificate, num_scored)
