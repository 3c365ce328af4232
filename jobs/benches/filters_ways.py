"""The two ways of `filters`: items that pass are gathered, or the others are hidden. Which takes less time, and is it
the one that a search chooses?

Both are timed in turns with the search of all items. `chosen_ms` has the time of the way that `Searcher.gathers`
chooses, and `ratio` what it is of a search without a filter.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from jobs.benches.filters_corpus import BATCH, Corpus, K, in_turns, never
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, take
from rails_ray.search.candidates import AVERAGE
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.masks import Exclusions, Remaining
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec
from rails_ray.serving.kept_masks import KeptMasks, LeftRows

SHARES = (0.9, 0.5, 0.1, 0.05, 0.01, 0.001)
COMPONENTS, COMPONENT_WIDTH = 8, 32  # of a mixture
MIXTURE_METHODS = ("brute_force", "average", "combined", "gated")
NO_PAIRS = Exclusions.of([])


def of_products(corpus: Corpus, graph: VectorIndex, repeats: int) -> Iterator[dict[str, Any]]:
    """All vectors under a dot product: exactly, and by a graph."""
    searcher = of_vectors(corpus, corpus.num_items, graph)
    query = products(corpus)
    yield from both_ways("dot product", searcher, query, repeats, ["brute_force"], index="none")
    yield from both_ways("dot product", searcher, query, repeats, ["ann"], index="hnsw")


def of_indexes(corpus: Corpus, num_items: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Fewer vectors, by the other kinds of index."""
    vectors = torch.from_numpy(corpus.vectors[:num_items])
    kinds: list[IndexConfig] = [FlatConfig(), FlatConfig(storage="sq8"), IvfConfig()]
    for config in kinds:
        made = build(fit(config, vectors[:100_000], len(vectors), 0), vectors.split(65_536))
        searcher = of_vectors(corpus, num_items, FaissIndex.read(made.data, made.error))
        index = f"{config.kind} {config.storage}"
        yield from both_ways("dot product", searcher, products(corpus), repeats, ["ann"], index=index)


def of_mixture(num_items: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Items of several components that are drawn at random, whose gates are even."""
    torch.manual_seed(0)
    sizes = MixtureOfLogitsConfig(num_query_components=COMPONENTS, num_item_components=COMPONENTS)
    components = torch.nn.functional.normalize(torch.randn(num_items, COMPONENTS, COMPONENT_WIDTH), dim=-1)
    items = ItemState(components, torch.randn(num_items, COMPONENTS**2), components.mean(dim=1))
    asked = torch.nn.functional.normalize(torch.randn(BATCH, COMPONENTS, COMPONENT_WIDTH), dim=-1)
    query = QueryState(asked, torch.randn(BATCH, COMPONENTS**2), torch.ones(BATCH))
    searcher = ByComponents(MixtureOfLogits(sizes).eval(), items)
    yield from both_ways("mixture", searcher, query, repeats, MIXTURE_METHODS, index="none")


def of_vectors(corpus: Corpus, num_items: int, index: VectorIndex) -> ByComponents:
    """The first vectors under a dot product, with an index of them."""
    vectors = torch.from_numpy(corpus.vectors[:num_items])
    items = ItemState(vectors[:, None], None, vectors)
    return ByComponents(DotProduct(DotProductConfig()), items, {AVERAGE: index})


def products(corpus: Corpus) -> QueryState:
    """A batch of queries."""
    return QueryState(torch.from_numpy(corpus.queries[:BATCH, None]), None, torch.ones(BATCH))


def both_ways(
    similarity: str, searcher: ByComponents, query: QueryState, repeats: int, methods: Sequence[str], *, index: str
) -> Iterator[dict[str, Any]]:
    """A row for each method, share and number of queries. The time of reading the kept mask is in both ways."""
    num, numbers = len(searcher), np.random.default_rng(3).random(len(searcher))
    for method, share, num_queries in (
        (own, share, size) for own in methods for share in SHARES for size in (1, BATCH)
    ):
        kept = KeptMasks()
        num_left = int(kept.mask(("filter",), num, lambda share=share: numbers < share).sum())
        asked = take(query, slice(0, num_queries))

        def left(kept: KeptMasks = kept) -> LeftRows:
            return LeftRows(num, is_left=torch.from_numpy(kept.mask(("filter",), num, never)))

        def unfiltered(asked: QueryState = asked, method: str = method) -> Any:
            return searcher.search(asked, SearchSpec(K), method)

        def hidden(asked: QueryState = asked, method: str = method, left: Any = left) -> Any:
            return searcher.search(asked, SearchSpec(K, mask=Remaining(left().is_left, NO_PAIRS)), method)

        def gathered(asked: QueryState = asked, left: Any = left) -> Any:
            return searcher.some(torch.from_numpy(left().rows)).search(asked, SearchSpec(K))

        unfiltered_ms, hidden_ms, gathered_ms = in_turns(repeats, unfiltered, hidden, gathered)
        is_gathered = searcher.gathers(num_left, num_queries, method)
        chosen_ms = gathered_ms if is_gathered else hidden_ms
        yield {
            "kind": "ways",
            "similarity": similarity,
            "index": index,
            "method": method,
            "num_items": num,
            "num_queries": num_queries,
            "share": share,
            "unfiltered_ms": unfiltered_ms,
            "hidden_ms": hidden_ms,
            "gathered_ms": gathered_ms,
            "is_gathered": is_gathered,
            "chosen_ms": chosen_ms,
            "ratio": round(chosen_ms / unfiltered_ms, 3),
        }
