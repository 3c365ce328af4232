"""Indexes: what does each kind and storage find, in what time, and what does our contract cost beside FAISS itself?

Vectors of length 1: clustered ones (1,000,000 x 64), texts of WordNet and TLDR by `wordllama` (256 numbers), whose
queries are texts that ask for them, and films of MovieLens-1M by the 64 leading singular vectors of who rated what,
whose queries are users. For each kind and storage, and for several widths of search, the recall of the ten best
against a scan, and the time of a batch of 32 queries: through `FaissIndex`, and by calling FAISS directly, in turns.
hnswlib stands beside them where it is installed.

    python -m jobs.benches.indexes [--data FOLDER] [--num-items 1000000] [--repeats 7]

A yes is at most 5% more time than FAISS called directly, a threshold search of about 100 items a query at most 1.2
times `range_search`, and opening an index in at most twice the time of `faiss.read_index`.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from rich.console import Console

from jobs.benches import pretrained
from jobs.benches.record import Record
from rails_ray.data.sources import Sources
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.faiss_building import Built, build, fit
from rails_ray.search.indexes.faiss_index import FaissIndex, IndexConfig, first_vector
from rails_ray.search.indexes.flat import FlatConfig, FlatIndex
from rails_ray.search.indexes.flat import Storage as Kept
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.search.spec import SearchSpec
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.memory import aligned
from rails_ray.storage.values import ID, TEXT

NUM_QUERIES, K, HITS = 32, 10, 100
COPIES = 3  # of an index: the same call takes 20% more or less time on another copy, by the pages it got
STORAGES: tuple[Kept, ...] = ("fp32", "fp16", "sq8")
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Arguments:
    """
    Args:
        data: folder with the data sets; those that it lacks are left out.
        num_items: of the clustered vectors.
    """

    data: Path = Path("../shared/data")
    num_items: int = 1_000_000
    repeats: int = 7


def main(arguments: Arguments) -> None:
    record, console = Record("indexes"), Console()
    for name, items, queries in corpora(arguments):
        for row in rows_of(items, queries, arguments.repeats):
            record.row(corpus=name, num_items=len(items), width=items.shape[1], **row)
            console.print({"corpus": name, **row})


def corpora(arguments: Arguments) -> Iterator[tuple[str, Vectors, Vectors]]:
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((1000, 64))
    items = centres[generator.integers(1000, size=arguments.num_items)]
    items = items + 0.6 * generator.standard_normal(items.shape)
    queries = items[generator.integers(len(items), size=NUM_QUERIES)]
    yield "clustered", unit(items), unit(queries + 0.3 * generator.standard_normal(queries.shape))
    for name in ("tldr", "wordnet"):
        folder = arguments.data / name
        if folder.exists():
            texts = [Sources(str(folder)).table(table).read({"text": TEXT})["text"] for table in ("items", "queries")]
            asked = texts[1].take(generator.integers(len(texts[1]), size=NUM_QUERIES))
            yield name, *(unit(pretrained.encode(column.to_pylist())) for column in (texts[0], asked))
    if (arguments.data / "ml-1m").exists():
        films, users = factors(arguments.data / "ml-1m")
        yield "ml-1m", unit(films), unit(users[generator.integers(len(users), size=NUM_QUERIES)])


def factors(folder: Path) -> tuple[Vectors, Vectors]:
    """Films and users by the leading singular vectors of the matrix of ratings."""
    rated = Sources(str(folder)).table("interactions").read({"user_id": ID, "item_id": ID})
    users, films = (np.unique(rated[name].to_numpy(), return_inverse=True)[1] for name in ("user_id", "item_id"))
    ratings = torch.sparse_coo_tensor(np.stack([users, films]), torch.ones(len(users)))
    torch.manual_seed(0)
    of_users, sizes, of_films = torch.svd_lowrank(ratings, q=64, niter=4)
    return (of_films * sizes.sqrt()).numpy(), (of_users * sizes.sqrt()).numpy()


def unit(vectors: NDArray[Any]) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.maximum(lengths, 1e-9), dtype=np.float32)


def rows_of(items: Vectors, queries: Vectors, repeats: int) -> Iterator[dict[str, Any]]:
    asked = torch.from_numpy(queries)
    scan = FlatIndex(torch.from_numpy(items))
    best = scan.search(asked, SearchSpec(K)).item_rows.numpy()
    [seconds] = in_turns(repeats, lambda: scan.search(asked, SearchSpec(K)))
    yield {"kind": "torch scan", "recall": 1.0, "ms": round(1000 * seconds, 3)}
    threshold = scan.search(asked, SearchSpec(HITS)).scores[:, -1].clone()
    for config in configs():
        yield from of_config(config, items, asked, best, threshold, repeats)
    yield from of_hnswlib(items, queries, best, repeats)


def configs() -> list[IndexConfig]:
    return [
        *(FlatConfig(storage=storage) for storage in STORAGES),
        *(IvfConfig(storage=storage) for storage in STORAGES),
        *(HnswConfig(storage=storage) for storage in STORAGES),
    ]


def of_config(
    config: IndexConfig,
    items: Vectors,
    queries: torch.Tensor,
    best: NDArray[np.int64],
    threshold: torch.Tensor,
    repeats: int,
) -> Iterator[dict[str, Any]]:
    import faiss

    started = time.perf_counter()
    sample = torch.from_numpy(items[np.random.default_rng(0).permutation(len(items))[:200_000]])
    made = build(fit(config, sample, len(items), 0), torch.from_numpy(items).split(65_536))
    told = {"kind": config.kind, "storage": config.storage, "build_s": round(time.perf_counter() - started, 1)}
    told |= {"bytes_an_item": round(len(made.data) / len(items), 1), **opening(made, items.shape, repeats)}
    copies = [
        (as_a_shard(made, items.shape), faiss.deserialize_index(np.frombuffer(made.data, np.uint8)))
        for _ in range(COPIES)
    ]
    index, direct = copies[0]
    asked = queries.numpy()
    for params, parameters in probings(config, direct):
        pairs = [
            in_turns(
                repeats,
                partial(our_copy.search, queries, SearchSpec(K), params),
                partial(their_copy.search, asked, K, params=parameters),
            )
            for our_copy, their_copy in copies
        ]
        ours, theirs = (median(times) for times in zip(*pairs, strict=True))
        found = index.search(queries, SearchSpec(K), params).item_rows.numpy()
        yield {
            **told,
            "nprobe": params.nprobe,
            "ef_search": params.ef_search,
            "recall": round(float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, best, strict=True)])), 4),
            "ms": round(1000 * ours, 3),
            "direct_ms": round(1000 * theirs, 3),
            "ratio": round(ours / theirs, 3),
        }
    spec, widths = SearchSpec(10 * HITS, threshold), probings(config, direct)
    params, parameters = widths[(len(widths) - 1) // 2]
    ours, theirs = in_turns(
        min(repeats, 3),  # `range_search` takes 20 s in a flat index of 16 or 8 bits
        lambda: index.search(queries, spec, params),
        lambda: [
            direct.range_search(asked[line : line + 1], float(threshold[line]), params=parameters)
            for line in range(len(asked))
        ],
    )
    yield {
        **told,
        "search": "threshold",
        "nprobe": params.nprobe,
        "ef_search": params.ef_search,
        "ms": round(1000 * ours, 3),
        "direct_ms": round(1000 * theirs, 3),
        "ratio": round(ours / theirs, 3),
    }


def as_a_shard(made: Built, shape: tuple[int, ...]) -> FaissIndex:
    """The index of vectors [X, d] in memory of its own, as a shard reads it."""
    memory = aligned(len(made.data), first_vector(len(made.data), *shape))
    memory[:] = np.frombuffer(made.data, np.uint8)
    return FaissIndex.read(memory, made.error)


def probings(config: IndexConfig, index: Any) -> list[tuple[SearchParams, Any]]:
    import faiss

    if config.kind == "ivf":
        widths = sorted({max(index.nlist // share, 1) for share in (256, 64, 16, 4)})
        return [(SearchParams(nprobe=width), faiss.SearchParametersIVF(nprobe=width)) for width in widths]
    if config.kind == "hnsw":
        return [(SearchParams(ef_search=width), faiss.SearchParametersHNSW(efSearch=width)) for width in (16, 64, 256)]
    return [(SearchParams(), None)]


def opening(made: Built, shape: tuple[int, ...], repeats: int) -> dict[str, float]:
    """How long it takes to read an index from storage with its checksum, and with FAISS alone."""
    import faiss

    from rails_ray.storage import manifest

    with tempfile.TemporaryDirectory(prefix="rails-ray-index-") as folder:
        storage = Storage(folder)
        entry = manifest.write_object(storage, made.data)
        place = first_vector(len(made.data), *shape)
        ours, theirs = in_turns(
            min(repeats, 3),
            lambda: FaissIndex.read(manifest.read_array(storage, "v", entry, place), made.error),
            lambda: faiss.read_index(f"{folder}/{entry.path}"),
        )
    return {"open_ms": round(1000 * ours, 1), "direct_open_ms": round(1000 * theirs, 1)}


def of_hnswlib(items: Vectors, queries: Vectors, best: NDArray[np.int64], repeats: int) -> Iterator[dict[str, Any]]:
    try:
        import hnswlib
    except ImportError:
        return
    started = time.perf_counter()
    index = hnswlib.Index(space="ip", dim=items.shape[1])
    index.init_index(max_elements=len(items), M=32, ef_construction=80)
    index.add_items(items, np.arange(len(items)))
    seconds = time.perf_counter() - started
    for width in (16, 64, 256):
        index.set_ef(width)
        [took] = in_turns(repeats, lambda: index.knn_query(queries, k=K))
        found, _ = index.knn_query(queries, k=K)
        shares = [len(set(a.tolist()) & set(b.tolist())) / K for a, b in zip(found, best, strict=True)]
        yield {
            "kind": "hnswlib",
            "storage": "fp32",
            "build_s": round(seconds, 1),
            "ef_search": width,
            "recall": round(float(np.mean(shares)), 4),
            "ms": round(1000 * took, 3),
        }


def in_turns(repeats: int, *ways: Callable[[], Any]) -> list[float]:
    """The median time of each way in seconds, all ways in turns."""
    times: list[list[float]] = [[] for _ in ways]
    for way in ways:
        way()
    for _ in range(repeats):
        for seconds, way in zip(times, ways, strict=True):
            started = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - started)
    return [median(own) for own in times]


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
