"""What a machine with some of the chunks does in a test: in a module that a spawned process can import."""

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from rails_ray.collectives.group import rank
from rails_ray.indexes.inverted import InvertedIndex
from rails_ray.kernels import compiled
from rails_ray.retrieval import Found, by_chunk
from rails_ray.similarities.states import Codes, Tables

NUM_BUCKETS = 6
CASE = 3, 200, 5, 7  # B, X, K, seed
K, NUM_PROBES, NUM_CANDIDATES = 6, 2, 50


def random_case(b: int, x: int, k: int, seed: int, is_exact: bool = False) -> tuple[Tables, Codes]:
    """Tables of normal numbers, or of halves, whose sums are exact and often equal; codes."""
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(b, k, NUM_BUCKETS, generator=generator)
    tables = tables.mul(2).round().div(2) if is_exact else tables
    return Tables(tables, torch.ones(b)), Codes(torch.randint(NUM_BUCKETS, (x, k), generator=generator))


def parts_of(query: Tables, items: Codes, cuts: list[int]) -> list[tuple[Tables, Codes]]:
    """By chunk: those before the first cut, those before the second .."""
    chunks = [slice(*ends) for ends in pairwise([0, *cuts, items.codes.shape[1]]) if ends[0] < ends[1]]
    return [(Tables(query.tables[:, own], query.temperature), Codes(items.codes[:, own])) for own in chunks]


def work() -> dict[str, Found]:
    """Both searches, of two processes."""
    compiled.loops = lambda: None  # which take seconds to compile; torch gives the same numbers
    query, items = parts_of(*random_case(*CASE), [2])[rank()]
    full = by_chunk.merge_scores(of_all(list(by_chunk.partial_scores(query, items, 90))), K)
    touched = of_all(by_chunk.partial_sums(query, InvertedIndex(items.codes, NUM_BUCKETS), NUM_PROBES))
    candidates = by_chunk.merge_sums(touched, query, len(items), NUM_CANDIDATES)
    scores = of_all(by_chunk.partial_candidate_scores(query, items, candidates))
    return {"full": full, "inverted": by_chunk.merge_candidate_scores(scores, candidates, K)}


def of_all(own: Any) -> list[Any]:
    """What each process has, by rank."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone
