"""Items by their codes, and both searches of them, for the suites that every retriever passes."""

import torch

import oracles.scores
from rails_ray.modules.similarities.states import Codes, Tables
from rails_ray.search.indexes.lookup import LookupIndex
from rails_ray.search.methods.look_up import FullLookUp

NUM_CHUNKS, NUM_BUCKETS, FEW_PROBES = 3, 7, 3


def random_codes(num_queries: int, num_items: int, seed: int = 0) -> tuple[Tables, Codes]:
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(num_queries, NUM_CHUNKS, NUM_BUCKETS, generator=generator)
    codes = torch.randint(NUM_BUCKETS, (num_items, NUM_CHUNKS), generator=generator)
    return Tables(tables, torch.ones(num_queries)), Codes(codes)


def look_ups(query: Tables, items: Codes) -> list[list[float]]:
    """The scores of all items."""
    return [[oracles.scores.look_up(own, code) for code in items.codes.tolist()] for own in query.tables.tolist()]


def full_search(items: Codes) -> FullLookUp:
    """Every item."""
    return FullLookUp(items, LookupIndex(items.codes))
