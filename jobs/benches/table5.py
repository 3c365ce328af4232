"""RAILS, Table 5: what do the retrieval methods cost, and what do they find?

For the paper's shapes (and one small enough for many runs): latency, peak memory above the loaded index,
recall@1/10/100 against brute force, items scored and the share of queries whose answer is certified, for every method
at the paper's widths, at B = 32 and B = 1, k = 100. Rows called naive are written from the paper's formulas: all of
[B, X, P] at once (a query at a time where that would not fit), items projected anew for every batch, duplicates scored
twice.

Items are synthetic: clusters in D dimensions; a query is an item with noise. Components and gates are trained on them
for some steps of sampled softmax, so that gates are neither flat nor random. All else is the product's own code.

    python -m jobs.benches.table5 [--shapes small ml20m books nq320k] [--batches 32 1] [--steps 120]

A yes, on two cores at X = 50,000, 8 x 8 x 32, B = 32: brute force without pruning 4 times faster than the naive one, 6
times with bf16 gate products, in 150 MB; two_pass finds the same sets; average and per_embedding twice as fast as the
naive ones at their recall; Books whole in 2 GB.
"""

import ctypes
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor

from jobs.benches.record import Record
from rails_ray.modules.encoders.components import ComponentsConfig, ItemComponents, QueryComponents
from rails_ray.modules.encoders.temperature import TemperatureConfig
from rails_ray.modules.losses.mutual_information import mutual_information
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, concatenate, map_tensors, take
from rails_ray.search.methods import Retriever
from rails_ray.search.methods.approximate import Approximate, CandidateLists
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.methods.two_pass import TwoPass
from rails_ray.search.spec import SearchResult, SearchSpec

K = 100
NAIVE_PAIRS = 2**28  # B * X * P that the naive methods may hold at once: 1 GB a tensor
ENCODED_AT_ONCE = 8192


@dataclass(frozen=True)
class Shape:
    """X items of P_X components of width d against P_Q; D is the width of the representation they come from."""

    num_items: int
    components: tuple[int, int]
    width: int
    representation: int
    per_embedding: tuple[int, ...]
    average: tuple[int, ...]
    combined: tuple[tuple[int, int], ...]


SHAPES = {
    "small": Shape(50_000, (8, 8), 32, 64, (5, 50, 100), (200, 1000, 4000), ((5, 200), (50, 500))),
    "ml20m": Shape(24_186, (8, 4), 128, 256, (5, 10, 50, 100), (200, 500), ((5, 200),)),
    "books": Shape(
        674_044, (8, 8), 32, 64, (5, 50, 100), (200, 500, 1000, 2000, 4000), ((5, 200), (50, 500), (100, 1000))
    ),
    "nq320k": Shape(109_739, (4, 4), 768, 768, (5, 10, 50), (100, 200), ((5, 100),)),
}


@dataclass(frozen=True)
class Arguments:
    """
    shapes: of which data sets.
    batches: queries searched at once.
    steps: of training components and gates.
    threads: of torch.
    repeats: timed runs of each method after one that is not; the median counts.
    """

    shapes: tuple[Literal["small", "ml20m", "books", "nq320k"], ...] = ("small", "ml20m", "books", "nq320k")
    batches: tuple[int, ...] = (32, 1)
    steps: int = 120
    threads: int = 2
    repeats: int = 3


@dataclass(frozen=True)
class Trained:
    """Item representations, the model of their components, and what an index of them holds."""

    representations: Tensor
    queries: QueryComponents
    items: ItemComponents
    similarity: MixtureOfLogits
    index: ItemState


def main(arguments: Arguments) -> None:
    torch.set_num_threads(arguments.threads)
    record, console = Record("table5"), Console()
    for name in arguments.shapes:
        shape = SHAPES[name]
        with console.status(f"{name}: train components and gates of {shape.num_items} items"):
            trained, loss = train(shape, arguments.steps)
        asked = trained.representations[:: shape.num_items // max(arguments.batches)][: max(arguments.batches)]
        asked = asked + 0.3 * torch.randn(asked.shape, generator=torch.Generator().manual_seed(1))
        for size in arguments.batches:
            rows = []
            with console.status(f"{name}, B = {size}") as status:
                for row in measured(shape, trained, asked[:size], arguments.repeats):
                    record.row(shape=name, batch=size, steps=arguments.steps, last_loss=loss, **row)
                    rows.append(row)
                    status.update(f"{name}, B = {size}: {row['method']} {row['width']}")
            console.print(table(f"{name}, B = {size}, k = {K}", rows))


def train(shape: Shape, num_steps: int) -> tuple[Trained, float]:
    """Clustered items, and a Mixture of Logits trained to find the item that a noisy query was made of."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(500, shape.representation, generator=generator)
    cluster = torch.randint(len(centres), (shape.num_items,), generator=generator)
    representations = centres[cluster] + 0.5 * torch.randn(shape.num_items, shape.representation, generator=generator)
    torch.manual_seed(0)
    p_q, p_x = shape.components
    components = ComponentsConfig(width=shape.width)
    queries = QueryComponents(shape.representation, shape.components, components, TemperatureConfig())
    items = ItemComponents(shape.representation, shape.components, components)
    similarity = MixtureOfLogits(MixtureOfLogitsConfig(num_query_components=p_q, num_item_components=p_x))
    modules = torch.nn.ModuleList([queries, items, similarity])
    optimizer = torch.optim.AdamW(modules.parameters(), lr=1e-3)
    loss = torch.zeros(())
    for _ in range(num_steps):
        rows = torch.randint(shape.num_items, (256,), generator=generator)
        batch = representations[rows[:64]]
        noisy = batch + 0.3 * torch.randn(batch.shape, generator=generator)
        scores, gates = similarity(queries(noisy), items(representations[rows]))
        assert gates is not None
        positive = torch.arange(64)
        own = gates[positive, positive]
        loss = F.cross_entropy(scores / similarity.temperature, positive)
        total = loss + mutual_information(own, own.mean(dim=0), 0.001 / len(own))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    modules.eval()
    with torch.no_grad():
        index = concatenate([items(part) for part in representations.split(ENCODED_AT_ONCE)])
    return Trained(representations, queries, items, similarity, index), loss.item()


def measured(shape: Shape, trained: Trained, asked: Tensor, repeats: int) -> Iterator[dict[str, object]]:
    """A row per method and width."""
    with torch.no_grad():
        query = trained.queries(asked)
    exact = BruteForce(trained.similarity, trained.index, prune=False).search(query, SearchSpec(K)).item_rows
    for method, width, ask in [*naive_methods(shape, trained, asked), *methods(shape, trained, query)]:
        with torch.no_grad(), peak_memory() as peak:
            found = ask()
            seconds = [timed(ask) for _ in range(repeats)]
        rows = found.item_rows if isinstance(found, SearchResult) else found
        row: dict[str, object] = {"method": method, "width": width, "latency_ms": 1000 * statistics.median(seconds)}
        row["peak_mb"] = peak[0]
        row |= {f"recall@{k}": recall(rows, exact, k) for k in (1, 10, 100)}
        if isinstance(found, SearchResult):
            row["num_scored"] = found.num_scored.double().mean().item()
            gap = found.gap(SearchSpec(K))
            row["certified_fraction"] = None if any(found.reasons) else (gap == 0).double().mean().item()
        yield row


Ask = tuple[str, str, Callable[[], SearchResult | Tensor]]


def methods(shape: Shape, trained: Trained, query: QueryState) -> Iterator[Ask]:
    """The product's own."""
    scored, index = trained.similarity.prepared(), trained.index
    num_pairs = shape.components[0] * shape.components[1]
    made: list[tuple[str, str, Retriever]] = [
        ("brute_force", "plain", BruteForce(scored, index, prune=False)),
        ("brute_force", "bf16 gates", BruteForce(trained.similarity.prepared(torch.bfloat16), index, prune=False)),
        ("brute_force", "pruned", BruteForce(scored, index)),
        ("two_pass", "10", TwoPass(scored, index, 10)),
        ("two_pass", "100", TwoPass(scored, index, 100)),
    ]
    made += [
        ("per_embedding", f"{n}", Approximate(scored, index, CandidateLists(num_per_embedding=n)))
        for n in shape.per_embedding
        if n * num_pairs >= K  # shorter lists cannot give k items
    ]
    made += [("average", f"{n}", Approximate(scored, index, CandidateLists(num_by_average=n))) for n in shape.average]
    made += [
        ("combined", f"{n}_{m}", Approximate(scored, index, CandidateLists(num_per_embedding=n, num_by_average=m)))
        for n, m in shape.combined
    ]
    for method, width, retriever in made:
        yield method, width, partial(retriever.search, query, SearchSpec(K))


def naive_methods(shape: Shape, trained: Trained, asked: Tensor) -> Iterator[Ask]:
    """From the formulas of the paper, items projected anew each time."""
    num_pairs = shape.components[0] * shape.components[1]
    at_once = max(NAIVE_PAIRS // (shape.num_items * num_pairs), 1)

    def each(search: Callable[[QueryState, ItemState], Tensor]) -> Callable[[], Tensor]:
        def ask() -> Tensor:
            query, items = trained.queries(asked), trained.items(trained.representations)
            return torch.cat([search(take(query, slice(i, i + at_once)), items) for i in range(0, len(asked), at_once)])

        return ask

    yield "naive brute_force", "all", each(lambda query, items: mixture(trained, query, items).topk(K).indices)
    for width in shape.per_embedding:
        if width * num_pairs >= K:
            yield "naive per_embedding", f"{width}", each(partial(naive_per_embedding, trained, width))
    for width in shape.average:
        yield "naive average", f"{width}", each(partial(naive_average, trained, width))


def mixture(trained: Trained, query: QueryState, items: ItemState) -> Tensor:
    """Scores of all items [X], or of each query's candidates [B C], term by term."""
    assert query.gate is not None
    assert items.gate is not None
    pattern = "bqd,xpd->bxqp" if items.components.dim() == 3 else "bqd,bxpd->bxqp"
    tau = trained.similarity.temperature
    logits = torch.einsum(pattern, query.components, items.components).flatten(start_dim=2) / tau  # [B, X, P]
    z = query.gate[:, None] * items.gate + trained.similarity.logit_gate(logits)
    return tau * (torch.softmax(z * torch.sigmoid(z), dim=-1) * logits).sum(dim=-1)


def naive_per_embedding(trained: Trained, width: int, query: QueryState, items: ItemState) -> Tensor:
    cosines = torch.einsum("bqd,xpd->bqpx", query.components, items.components)
    return rescored(trained, query, items, cosines.topk(width).indices.flatten(start_dim=1))


def naive_average(trained: Trained, width: int, query: QueryState, items: ItemState) -> Tensor:
    cosines = query.components.sum(dim=1) @ items.components.sum(dim=1).T
    return rescored(trained, query, items, cosines.topk(width).indices)


def rescored(trained: Trained, query: QueryState, items: ItemState, rows: Tensor) -> Tensor:
    """The k best candidates, each once: what stands in several lists is scored in each."""
    rows = rows.sort(dim=1).values
    is_again = F.pad(rows[:, 1:] == rows[:, :-1], (1, 0))
    candidates = map_tensors(lambda tensor: tensor[rows], items)
    scores = mixture(trained, query, candidates).masked_fill(is_again, -torch.inf)
    return rows.gather(1, scores.topk(K).indices)


def recall(rows: Tensor, exact: Tensor, k: int) -> float:
    """The mean share of the exact k best among the first k found."""
    pairs = zip(rows[:, :k].tolist(), exact[:, :k].tolist(), strict=True)
    return statistics.mean(len(set(found) & set(true)) / k for found, true in pairs)


def timed(ask: Callable[[], object]) -> float:
    started = time.perf_counter()
    ask()
    return time.perf_counter() - started


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """MB of resident memory at most above those at the beginning; looked at every 5 ms."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed before must not serve what is measured
    page_mb = 4096 / 1e6

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page_mb

    before, peak, is_done = resident(), [0.0], threading.Event()

    def watch() -> None:
        while not is_done.wait(0.005):
            peak[0] = max(peak[0], resident() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        is_done.set()
        watcher.join()


def table(title: str, rows: list[dict[str, object]]) -> Table:
    made = Table("method", "width", "ms", "x naive", "MB", "R@1", "R@10", "R@100", "scored", "certified", title=title)
    naive = rows[0]["latency_ms"]
    assert isinstance(naive, float)
    for row in rows:
        latency, certified = row["latency_ms"], row.get("certified_fraction")
        assert isinstance(latency, float)
        made.add_row(
            f"{row['method']}",
            f"{row['width']}",
            f"{latency:.1f}",
            f"{naive / latency:.1f}",
            f"{row['peak_mb']:.0f}",
            *(f"{row[f'recall@{k}']:.3f}" for k in (1, 10, 100)),
            f"{row['num_scored']:.0f}" if "num_scored" in row else "",
            "" if certified is None else f"{certified:.0%}",
        )
    return made


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
