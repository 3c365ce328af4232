"""Filters: how long does a search of some items take, compared with one of all?

Items that a filter passes are gathered and scored, or the others are hidden from the scan or the index. Between 0.5 and
0.001 of the items pass, drawn at random. Both ways and the search without a filter are timed in turns, for 1 and 32
queries: under a dot product, exactly and by a graph, and under a mixture of 8 x 8 components of 32 numbers. These times
include reading the mask from bits that are kept. Other rows have the time of making a mask, for an equality, a range,
`$in` of 100 and an `$and` of three. LanceDB's exact search with a prefilter is measured too where it is installed.

    python -m jobs.benches.filters [--num-items 1000000] [--num-mixture 200000] [--repeats 7]

A yes is, of a search that passes half: at most 1.1 times the time without a filter under a dot product, 0.65 times
under a mixture; of one that passes 0.001 under a mixture, 0.05 times. `gather_share` in `search.searcher` is where the
two ways cross.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import tyro
from numpy.typing import NDArray
from rich.console import Console

from jobs.benches.record import Record
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, take
from rails_ray.schema.filters import parse
from rails_ray.search.candidates import AVERAGE
from rails_ray.search.indexes.faiss_building import build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.masks import Exclusions, Remaining
from rails_ray.search.searcher import ByComponents
from rails_ray.search.spec import SearchSpec
from rails_ray.serving.kept_masks import KeptMasks
from rails_ray.storage.filtering import passing

WIDTH, K = 64, 10
COMPONENTS, COMPONENT_WIDTH = 8, 32  # of a mixture
SHARES = (0.5, 0.25, 0.1, 0.05, 0.01, 0.001)
NO_PAIRS = Exclusions.of([])


@dataclass(frozen=True)
class Arguments:
    """
    Args:
        num_items: vectors of the dot product, and rows of the columns.
        num_mixture: items of the mixture.
    """

    num_items: int = 1_000_000
    num_mixture: int = 200_000
    repeats: int = 7


def main(arguments: Arguments) -> None:
    record, console = Record("filters"), Console()
    rows = [of_masks(arguments), of_products(arguments), of_mixture(arguments), of_lance(arguments)]
    for row in (row for part in rows for row in part):
        record.row(**row)
        console.print(row)


def of_masks(arguments: Arguments) -> Iterator[dict[str, Any]]:
    """The time of a mask, made and kept."""
    num, generator = arguments.num_items, np.random.default_rng(0)
    languages = pa.array([f"lang-{number}" for number in range(200)])
    columns = {
        "lang": languages.take(pa.array(generator.integers(200, size=num))),
        "price": pa.array(generator.random(num)),
        "year": pa.array(generator.integers(1900, 2030, size=num)),
    }
    table, kinds = pa.table(columns), {"lang": "string", "price": "float", "year": "int"}
    filters: dict[str, dict[str, Any]] = {
        "equality": {"lang": "lang-7"},
        "range": {"price": {"$gte": 0.25, "$lt": 0.75}},
        "in of 100": {"lang": {"$in": languages.to_pylist()[:100]}},
        "and of 3": {"$and": [{"lang": {"$ne": "lang-7"}}, {"price": {"$lt": 0.5}}, {"year": {"$gte": 2000}}]},
    }
    for name, given in filters.items():
        condition, kept = parse(given, kinds), KeptMasks()
        made = kept.mask((name,), num, lambda condition=condition: passing(condition, table))
        cold, warm = in_turns(
            arguments.repeats,
            lambda condition=condition: passing(condition, table),
            lambda kept=kept, name=name: kept.mask((name,), num, never),
        )
        yield {
            "kind": "mask",
            "filter": name,
            "num_items": num,
            "share": round(float(made.mean()), 4),
            "made_ms": ms(cold),
            "kept_ms": ms(warm),
        }


def of_products(arguments: Arguments) -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(arguments.num_items, WIDTH))
    items = ItemState(vectors[:, None], None, vectors)
    query = QueryState(torch.nn.functional.normalize(torch.randn(32, 1, WIDTH)), None, torch.ones(32))
    similarity = DotProduct(DotProductConfig())
    made = build(fit(HnswConfig(), vectors[:200_000], len(vectors), 0), vectors.split(65_536))
    indexes = {AVERAGE: FaissIndex.read(made.data, made.error)}
    searcher = ByComponents(similarity, items, indexes)
    for method in ("brute_force", "ann"):
        yield from crossing("dot product", searcher, query, arguments.repeats, method)


def of_mixture(arguments: Arguments) -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    sizes = MixtureOfLogitsConfig(num_query_components=COMPONENTS, num_item_components=COMPONENTS)
    mixture, num = MixtureOfLogits(sizes).eval(), arguments.num_mixture
    components = torch.nn.functional.normalize(torch.randn(num, COMPONENTS, COMPONENT_WIDTH), dim=-1)
    items = ItemState(components, torch.randn(num, COMPONENTS**2), components.mean(dim=1))
    asked = torch.nn.functional.normalize(torch.randn(32, COMPONENTS, COMPONENT_WIDTH), dim=-1)
    query = QueryState(asked, torch.randn(32, COMPONENTS**2), torch.ones(32))
    yield from crossing("mixture", ByComponents(mixture, items), query, arguments.repeats)


def crossing(
    similarity: str, searcher: ByComponents, query: QueryState, repeats: int, method: str = "brute_force"
) -> Iterator[dict[str, Any]]:
    """A search of a share of the items, both ways, and one of all."""
    num = len(searcher)
    for share in SHARES:
        is_left = np.random.default_rng(1).random(num) < share
        kept = KeptMasks()
        kept.mask(("filter",), num, lambda is_left=is_left: is_left)
        for num_queries in (1, 32):
            asked = take(query, slice(0, num_queries))

            def unfiltered(asked: QueryState = asked) -> Any:
                return searcher.search(asked, SearchSpec(K), method)

            def hidden(asked: QueryState = asked, kept: KeptMasks = kept) -> Any:
                mask = Remaining(torch.from_numpy(kept.mask(("filter",), num, never)), NO_PAIRS)
                return searcher.search(asked, SearchSpec(K, mask=mask), method)

            def gathered(asked: QueryState = asked, kept: KeptMasks = kept) -> Any:
                rows = torch.from_numpy(np.flatnonzero(kept.mask(("filter",), num, never)))
                return searcher.some(rows).search(asked, SearchSpec(K))

            of_all, of_hidden, of_gathered = in_turns(repeats, unfiltered, hidden, gathered)
            yield {
                "kind": "search",
                "similarity": similarity,
                "method": method,
                "num_items": num,
                "num_queries": num_queries,
                "share": share,
                "unfiltered_ms": ms(of_all),
                "hidden_ms": ms(of_hidden),
                "gathered_ms": ms(of_gathered),
                "ratio": round(min(of_hidden, of_gathered) / of_all, 3),
            }


def of_lance(arguments: Arguments) -> Iterator[dict[str, Any]]:
    """LanceDB's exact search, by its defaults but for the distance."""
    if find_spec("lancedb") is None:
        return
    import lancedb

    num, generator = arguments.num_items, np.random.default_rng(0)
    vectors = generator.standard_normal((num, WIDTH), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), WIDTH)
    rows = pa.table({"id": np.arange(num), "number": generator.random(num), "vector": column})
    with tempfile.TemporaryDirectory() as folder:
        table = lancedb.connect(folder).create_table("items", rows)

        def search(share: float | None = None) -> Any:
            asking = table.search(vectors[0]).distance_type("dot").limit(K).select(["id"])
            return (asking if share is None else asking.where(f"number < {share}", prefilter=True)).to_arrow()

        for share in SHARES:
            of_all, of_some = in_turns(arguments.repeats, search, lambda share=share: search(share))
            yield {
                "kind": "lancedb",
                "num_items": num,
                "num_queries": 1,
                "share": share,
                "unfiltered_ms": ms(of_all),
                "filtered_ms": ms(of_some),
                "ratio": round(of_some / of_all, 3),
            }


def never() -> NDArray[np.bool_]:
    raise AssertionError("a kept mask is made again")


def in_turns(repeats: int, *calls: Callable[[], Any]) -> list[float]:
    """The median time of each call, in seconds."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats + 1):  # the first is not counted
        for own, call in zip(seconds, calls, strict=True):
            began = time.perf_counter()
            call()
            own.append(time.perf_counter() - began)
    return [median(own[1:]) for own in seconds]


def ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


if __name__ == "__main__":
    main(tyro.cli(Arguments))
