"""Merging: what does a router's merge of all shards' answers cost?

8 shards with 1,000 candidates each for 32 queries, scores at random, each shard's list in order, as shards answer; the
1,000 best of all. On one thread and on two. Beside it torch's topk of the same scores, which knows no ties and gives
columns, not rows: what any merge by torch costs at least.

    python -m jobs.benches.merging [--repeats 200]

SearchSpec: less than 2 ms.
"""

import statistics
from dataclasses import dataclass

import torch
import tyro

from jobs.benches.record import Record
from jobs.benches.table5 import timed
from rails_ray.kernels.top_k import select
from rails_ray.search.sharded import merge
from rails_ray.search.spec import SearchResult, SearchSpec

SHARDS, CANDIDATES, QUERIES = 8, 1000, 32


@dataclass(frozen=True)
class Arguments:
    repeats: int = 200


def main(arguments: Arguments) -> None:
    record = Record("merging")
    generator = torch.Generator().manual_seed(0)
    parts = [answer_of(shard, generator) for shard in range(SHARDS)]
    scores = torch.cat([part.scores for part in parts], dim=1)
    spec = SearchSpec(CANDIDATES)
    num_left = torch.full((QUERIES,), 5 * CANDIDATES * SHARDS)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        calls = {"merge": lambda: merge(parts, spec, num_left), "topk": lambda: scores.topk(CANDIDATES + 1, dim=1)}
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(arguments.repeats + 20):
            for name, call in calls.items():
                took = timed(call)
                seconds[name] += [took] if turn >= 20 else []
        median = {f"{name}_ms": 1000 * statistics.median(own) for name, own in seconds.items()}
        record.row(kind="merge", threads=threads, shards=SHARDS, candidates=CANDIDATES, queries=QUERIES, **median)
        print(threads, median)


def answer_of(shard: int, generator: torch.Generator) -> SearchResult:
    """What a shard answers."""
    best = select(torch.rand(QUERIES, 5 * CANDIDATES, generator=generator), CANDIDATES)
    return SearchResult(
        scores=best.scores,
        item_rows=best.item_rows + shard * 5 * CANDIDATES,
        bound=best.scores[:, -1],
        is_truncated=torch.ones(QUERIES, dtype=torch.bool),
        num_scored=torch.full((QUERIES,), CANDIDATES),
        reasons=[None] * QUERIES,
    )


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
