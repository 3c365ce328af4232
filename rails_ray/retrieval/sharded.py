"""One corpus in several parts: what a shard answers, and how the answers become one.

A shard holds consecutive item rows and answers with the rows of the whole corpus. As each shard gives its own k best,
the k best of all answers are those of the corpus, ties included (`top_k`).
"""

from collections.abc import Iterable, Sequence

import torch

from rails_ray.retrieval import Retriever
from rails_ray.similarities.states import QueryState, take
from rails_ray.top_k import Exclusions, TopK, merge


def search_shard(
    retriever: Retriever,
    num_items: int,
    first_row: int,
    query: QueryState,
    k: int,
    exclude: Sequence[Iterable[int]],
) -> list[TopK]:
    """One [1, k'] result per query, k' = min(k, items of the shard left after exclusion), rows those of the corpus.

    Args:
        num_items, first_row: of the shard.
        exclude: per query, rows of the shard (from 0) that must not be answered.
    """
    excluded = [sorted(set(rows)) for rows in exclude]
    widths = [min(k, num_items - len(rows)) for rows in excluded]
    results: dict[int, TopK] = {}
    for width in set(widths):  # nearly always a single one
        queries = [number for number, own in enumerate(widths) if own == width]
        if width == 0:
            found = TopK(torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64))
        else:
            part = query if len(queries) == len(query) else take(query, queries)
            exclusions = Exclusions.of([excluded[number] for number in queries]) if any(excluded) else None
            found = retriever.search(part, width, exclusions)
        for line, number in enumerate(queries):
            rows = found.item_rows[line : line + 1] + first_row
            results[number] = TopK(found.scores[line : line + 1], rows)
    return [results[number] for number in range(len(excluded))]


def merge_shards(answers: Sequence[Sequence[TopK]], k: int) -> list[TopK]:
    """The [1, k] answer of each query from the answers of all shards.

    Raises:
        ValueError: if the shards together hold fewer than k items that are not excluded.
    """
    merged = [merge(list(parts), k) for parts in zip(*answers, strict=True)]
    fewest = min((top_k.k for top_k in merged), default=k)
    if fewest < k:
        raise ValueError(f"k must be at most the {fewest} items searched and not excluded, got {k}")
    return merged
