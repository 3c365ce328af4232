"""Items by their codes, and both searches of them, for the suites that every retriever passes."""

import torch

import oracles
from rails_ray.indexes.inverted import InvertedIndex
from rails_ray.indexes.lookup import LookupIndex
from rails_ray.retrieval import Retriever
from rails_ray.retrieval.look_up import FullLookUp, Inverted
from rails_ray.similarities.states import Codes, Tables

NUM_CHUNKS, NUM_BUCKETS, FEW_PROBES = 3, 7, 3


def random_codes(num_queries: int, num_items: int, seed: int = 0) -> tuple[Tables, Codes]:
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(num_queries, NUM_CHUNKS, NUM_BUCKETS, generator=generator)
    codes = torch.randint(NUM_BUCKETS, (num_items, NUM_CHUNKS), generator=generator)
    return Tables(tables, torch.ones(num_queries)), Codes(codes)


def look_ups(query: Tables, items: Codes) -> list[list[float]]:
    """The scores of all items."""
    return [[oracles.look_up(own, code) for code in items.codes.tolist()] for own in query.tables.tolist()]


def full_search(items: Codes) -> FullLookUp:
    """Every item."""
    return FullLookUp(items, LookupIndex(items.codes))


def of_codes(method: str, items: Codes, num_candidates: int) -> Retriever[Tables]:
    """By every item, or by those in posted buckets: in all of them where all items are candidates, else in a few."""
    if method == "look_up":
        return full_search(items)
    num_probes = NUM_BUCKETS if num_candidates >= len(items) else FEW_PROBES
    return Inverted(items, InvertedIndex(items.codes, NUM_BUCKETS), num_probes, num_candidates)
