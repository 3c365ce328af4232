"""Threshold search: what does it cost to find all items at or above a score, beside FAISS and beside a top-k?

flat: `FlatIndex.search` against `faiss.IndexFlatIP.range_search`, X = 150,000 vectors of length 1, d = 64 and
128, B = 32, once with vectors that point anywhere and once in clusters of very different sizes, of which queries are
members with noise, so that some queries find far more than others. FAISS takes one radius, so all queries have one
threshold, such that 10, 100 or 1,000 items a query are found. FAISS is measured as it comes and with blocks of 16,384
vectors, with which it is fastest here. Ours sorts each query's items by score, FAISS does not sort.

mixture: the exact scan of `table5`'s small shape (X = 50,000, 8 x 8 x 32, B = 32; its items and its training): by a
threshold, the 10th, 100th or 1,000th best score of each query, with a cap of 1,000, against the top-k with k = 1,000.

Held fixed: two threads for both libraries, methods in turns after a pause (the threads of one library still spin when
the other begins), the median of the runs.

    python -m jobs.benches.threshold [--parts flat mixture] [--repeats 9] [--steps 120]

A yes: ours takes at most 1.2 times as long as FAISS; with a threshold the scan of the mixture is never slower than the
top-k.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, cast

import faiss
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor

from jobs.benches.record import Record
from jobs.benches.table5 import SHAPES, timed, train
from rails_ray.search.indexes.flat import FlatIndex
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.spec import SearchResult, SearchSpec

BATCH = 32
NUM_ABOVE = (10, 100, 1000)  # items a query that reach the threshold
CAP = 1000  # of the mixture
WIDE_BLOCK = 16_384
PAUSE_S = 0.02


@dataclass(frozen=True)
class Arguments:
    """
    parts: of this bench.
    num_items: vectors of the flat index.
    widths: of a vector.
    steps: of training components and gates of the mixture.
    threads: of torch and of FAISS.
    repeats: timed runs of each method after one that is not.
    """

    parts: tuple[Literal["flat", "mixture"], ...] = ("flat", "mixture")
    num_items: int = 150_000
    widths: tuple[int, ...] = (64, 128)
    steps: int = 120
    threads: int = 2
    repeats: int = 9


def main(arguments: Arguments) -> None:
    torch.set_num_threads(arguments.threads)
    faiss.omp_set_num_threads(arguments.threads)
    record, console = Record("threshold"), Console()
    if "flat" in arguments.parts:
        rows = []
        with console.status("flat"):
            for width in arguments.widths:
                for vectors in ("anywhere", "clusters"):
                    for row in flat(arguments, width, vectors):
                        record.row(part="flat", width=width, vectors=vectors, batch=BATCH, **row)
                        rows.append({"of": f"d = {width}, {vectors}", **row})
        console.print(table("flat", rows, "faiss"))
    if "mixture" in arguments.parts:
        with console.status("mixture"):
            rows = list(mixture(arguments))
        for row in rows:
            record.row(part="mixture", batch=BATCH, steps=arguments.steps, **row)
        console.print(table("mixture", [{"of": "8 x 8 x 32", **row} for row in rows], "top-k"))


def flat(arguments: Arguments, width: int, kind: str) -> Iterator[dict[str, object]]:
    """A row per method and number of items wanted."""
    vectors, queries = made(kind, arguments.num_items, width)
    index, theirs = FlatIndex(vectors), faiss.IndexFlatIP(width)
    theirs.add(vectors.numpy())
    scores = (queries @ vectors.T).flatten().sort(descending=True).values
    for num_above in NUM_ABOVE:
        threshold = scores[num_above * BATCH - 1]
        radius = float(np.nextafter(np.float32(threshold), np.float32(-2)))  # which FAISS wants exceeded

        def ours(threshold: Tensor = threshold) -> SearchResult:
            return index.search(queries, SearchSpec(arguments.num_items, threshold.expand(BATCH)))

        def of_faiss(radius: float = radius, block: int = 1024) -> object:
            faiss.cvar.distance_compute_blas_database_bs = block  # 1024 as it comes
            return theirs.range_search(queries.numpy(), radius)

        methods = {
            "ours": ours,
            "faiss": of_faiss,
            "faiss, wide blocks": lambda of_faiss=of_faiss: of_faiss(block=WIDE_BLOCK),
        }
        found = ours().num_found()
        limits, _, _ = of_faiss()
        by_method = {"ours": found, "faiss": torch.from_numpy(np.diff(limits.astype(np.int64)))}
        for method, milliseconds in in_turns(methods, arguments.repeats).items():
            num_found = by_method[method.split(",")[0]]
            yield {
                "num_above": num_above,
                "method": method,
                "latency_ms": milliseconds,
                "num_found": num_found.double().mean().item(),
                "longest": int(num_found.max()),
            }


def made(kind: str, num_items: int, width: int) -> tuple[Tensor, Tensor]:
    """Vectors and queries of length 1."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(num_items, width, generator=generator)
    queries = torch.randn(BATCH, width, generator=generator)
    if kind == "clusters":
        centres = torch.randn(500, width, generator=generator)
        popularity = 1 / torch.arange(1, 501)
        cluster = popularity.multinomial(num_items, replacement=True, generator=generator)
        vectors = centres[cluster] + 0.5 * vectors
        queries = vectors[torch.randint(num_items, (BATCH,), generator=generator)] + 0.3 * queries
    return F.normalize(vectors, dim=1), F.normalize(queries, dim=1)


def mixture(arguments: Arguments) -> Iterator[dict[str, object]]:
    """A row per threshold, after those of the top-k."""
    shape = SHAPES["small"]
    trained, _ = train(shape, arguments.steps)
    asked = trained.representations[:: shape.num_items // BATCH][:BATCH]
    asked = asked + 0.3 * torch.randn(asked.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        query = trained.queries(asked)
    scan = BruteForce(trained.similarity, trained.index)
    best = BruteForce(trained.similarity, trained.index, prune=False).search(query, SearchSpec(CAP + 1)).scores
    methods: dict[str, Callable[[], SearchResult]] = {"top-k": lambda: scan.search(query, SearchSpec(CAP))}
    for num in NUM_ABOVE:
        threshold = best[:, num - 1 : num + 1].mean(dim=1)
        methods[f"threshold {num}"] = lambda threshold=threshold: scan.search(query, SearchSpec(CAP, threshold))
    found = {method: ask() for method, ask in methods.items()}
    for method, milliseconds in in_turns(methods, arguments.repeats).items():
        one = found[method]
        yield {
            "num_above": CAP if method == "top-k" else int(method.split()[1]),
            "method": method.split()[0],
            "latency_ms": milliseconds,
            "num_found": one.num_found().double().mean().item(),
            "num_scored": one.num_scored.double().mean().item(),
        }


def in_turns(methods: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Milliseconds of each, the median."""
    seconds: dict[str, list[float]] = {method: [] for method in methods}
    for _ in range(repeats + 1):
        for method, ask in methods.items():
            time.sleep(PAUSE_S)  # threads of one library still spin when the other begins; no event tells the end
            seconds[method].append(timed(ask))
    return {method: 1000 * statistics.median(all_of_them[1:]) for method, all_of_them in seconds.items()}


def table(title: str, rows: list[dict[str, object]], baseline: str) -> Table:
    """With ratios to the fastest row of the same question whose method begins with `baseline`."""
    made_of = Table("of", "items above", "method", "ms", f"x {baseline}", "found", "longest", "scored", title=title)
    base: dict[object, float] = {}
    for row in rows:
        if f"{row['method']}".startswith(baseline):
            asked = row["of"], row["num_above"]
            base[asked] = min(base.get(asked, math.inf), cast(float, row["latency_ms"]))
    for row in rows:
        latency = cast(float, row["latency_ms"])
        ratio = latency / base.get((row["of"], row["num_above"]), min(base.values()))
        numbers = (f"{row[key]:.0f}" if key in row else "" for key in ("num_found", "longest", "num_scored"))
        made_of.add_row(
            f"{row['of']}", f"{row['num_above']}", f"{row['method']}", f"{latency:.1f}", f"{ratio:.2f}", *numbers
        )
    return made_of


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
