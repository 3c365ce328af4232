"""Searches of the shapes of `table5`: what a method costs on this device, what it finds, and what limits it.

Items and weights are made as there, which cannot be imported: its command line is not installed on a bare machine. The
dot product compares the representations that the components come from.

A filter leaves a share of the items to `filtered`: `gathered` scores copies of their states in float32, `hidden` scans
all items and hides the others, `listed` scans by a list of rows. Rows and masks are sent anew with each search.

A search must read the items once, compute all cosines, and gate the items that it scores. The limit's time for that is
the longer of two: the bytes over the rate of a copy, the products over those of matrix products. What else is computed
(tanh and exp of each gate) is not in it.

Axes: B queries, X items, P_Q / P_X components, P = P_Q * P_X, d width of a component, D width of a representation.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from jobs.benches.gpu_measuring import DTYPES, Bench, Case, median_ms, peak_mb, products_in, work_of_the_host
from rails_ray.kernels.mol_scan import plain_scores
from rails_ray.kernels.uploads import upload
from rails_ray.modules.encoders.components import ComponentsConfig, ItemComponents, QueryComponents
from rails_ray.modules.encoders.temperature import TemperatureConfig
from rails_ray.modules.losses.mutual_information import mutual_information
from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, concatenate, take, tensors_of
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.masks import Exclusions, Remaining
from rails_ray.search.methods.approximate import Approximate, CandidateLists
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.methods.on_gpu import GpuScan
from rails_ray.search.methods.two_pass import TwoPass
from rails_ray.search.searcher import ByComponents
from rails_ray.search.selected import Selected
from rails_ray.search.spec import SearchSpec

K = 100
FILTERED = (0.01, 0.1, 0.5)  # shares of the items that filters leave
GATE_HIDDEN = 128
ENCODED_AT_ONCE = 8192
TRAINING_STEPS, SMALL_TRAINING_STEPS = 120, 3
NAIVE_PAIRS = 2**21  # of query and item at once, whose cosines take 0.5 GB
SMALLER, LEAST_ITEMS = 400, 500  # a test's corpus: by what it is smaller, and how small at most


@dataclass(frozen=True)
class Shape:
    """X items of P_X components of width d against P_Q, made of representations of width D.

    combined: widths of the combined method's first stage: by each pair of components, by average.
    """

    num_items: int
    components: tuple[int, int]
    width: int
    representation: int
    combined: tuple[int, int]


SHAPES = {
    "small": Shape(50_000, (8, 8), 32, 64, (50, 500)),
    "ml20m": Shape(24_186, (8, 4), 128, 256, (5, 200)),
    "books": Shape(674_044, (8, 8), 32, 64, (50, 500)),
    "nq320k": Shape(109_739, (4, 4), 768, 768, (5, 100)),
}


Compared = MixtureOfLogits | DotProduct


class Asked(NamedTuple):
    """A method, and what is told to it.

    precision: of the products of cosines and gates.
    share: of the items that a filter leaves.
    """

    method: str
    width: str
    precision: str = "float32"
    num_per_embedding: int = 0
    num_by_average: int = 0
    share: float = 1.0


class Answer(NamedTuple):
    """
    item_rows: the k best of each query [B, k].
    num_scored: items whose score was computed, by query.
    """

    item_rows: Tensor
    num_scored: Tensor


class Corpus(NamedTuple):
    """
    queries: of which the first B are asked.
    """

    similarity: Compared
    items: ItemState
    queries: QueryState


def cases(bench: Bench) -> Iterator[Case]:
    for name in bench.shapes:
        shape = SHAPES[name]
        if bench.is_small:
            num_items = max(shape.num_items // SMALLER, LEAST_ITEMS)
            shape = Shape(num_items, shape.components, shape.width, shape.representation, shape.combined)
        mixture, dot = corpora(shape, bench)
        for size in bench.batches:
            exact: dict[str, Tensor] = {}
            for asked in methods(shape, bench):
                corpus = dot if asked.method == "dot_product" else mixture
                labels = {"shape": name, "batch": size, "method": asked.method, "width": asked.width}
                yield Case(labels, partial(measured, bench, shape, corpus, asked, size, exact))


def methods(shape: Shape, bench: Bench) -> Iterator[Asked]:
    """The first, and that of the dot product, are what others are compared with."""
    yield Asked("brute_force", "plain")
    yield Asked("on_gpu", "fused", precision="bfloat16")
    yield Asked("naive", "float32")
    yield Asked("naive", "bfloat16", precision="bfloat16")
    yield Asked("brute_force", "pruned")
    yield Asked("two_pass", "100", num_per_embedding=100)
    per_embedding, by_average = shape.combined
    least = max(per_embedding, -(-K // math.prod(shape.components)))
    yield Asked("per_embedding", f"{least}", num_per_embedding=least)
    yield Asked("average", "1000", num_by_average=1000)
    label = f"{per_embedding}_{by_average}"
    yield Asked("combined", label, num_per_embedding=per_embedding, num_by_average=by_average)
    yield Asked("gated", "1000", num_by_average=1000)
    for share in FILTERED:  # the first is what others are compared with
        yield Asked("filtered", f"gathered, {share:.0%}", share=share)
        for how in ("hidden", "listed"):
            yield Asked("filtered", f"{how}, {share:.0%}", precision="bfloat16", share=share)
    yield Asked("dot_product", "plain")
    yield Asked("dot_product", "on_gpu")


def search(asked: Asked, similarity: Compared, items: ItemState) -> Callable[[QueryState, int], Answer]:
    """A method that is ready to search, as a shard has it; all of this bench's calls into retrieval are here."""
    scorer: Scorer = similarity.prepared()
    retriever: Any
    match asked.method, asked.width:
        case "naive", _:
            assert isinstance(similarity, MixtureOfLogits)
            return partial(naive, similarity, items, DTYPES[asked.precision])
        case "filtered", _:
            return filtered(asked, BruteForce(scorer, items, prune=False))
        case ("on_gpu", _) | (_, "on_gpu"):
            retriever = GpuScan.of(BruteForce(scorer, items))
        case (("brute_force" | "dot_product"), _):
            retriever = BruteForce(scorer, items, prune=asked.width == "pruned")
        case "two_pass", _:
            retriever = TwoPass(scorer, items, asked.num_per_embedding)
        case "gated", _:
            retriever = ByComponents(similarity, items).retriever(
                "gated", SearchParams(num_candidates=asked.num_by_average)
            )
        case _:
            lists = CandidateLists(num_per_embedding=asked.num_per_embedding, num_by_average=asked.num_by_average)
            retriever = Approximate(scorer, items, lists)

    def answer(query: QueryState, k: int) -> Answer:
        found = retriever.search(query, SearchSpec(k))
        return Answer(found.item_rows, found.num_scored)

    return answer


def filtered(asked: Asked, scan: BruteForce) -> Callable[[QueryState, int], Answer]:
    """A search of some items, which are drawn at random, in one of three ways."""
    num_items, how = len(scan.items), asked.width.partition(",")[0]
    drawn = torch.randperm(num_items, generator=torch.Generator().manual_seed(0))
    rows = drawn[: max(round(asked.share * num_items), 1)].sort().values
    is_left = torch.zeros(num_items, dtype=torch.bool).index_fill(0, rows, True)
    whole = None if how == "gathered" else GpuScan.of(scan)

    def answer(query: QueryState, k: int) -> Answer:
        if whole is not None and how == "hidden":
            found = whole.search(query, SearchSpec(k, mask=Remaining(is_left, Exclusions.of([]))))
            return Answer(found.item_rows, found.num_scored)
        there = upload(rows, query.components.device)
        some = BruteForce(scan.similarity, Selected(scan.items, there)) if whole is None else whole.of_rows(there)
        found = some.search(query, SearchSpec(k))
        return Answer(there[found.item_rows], found.num_scored)

    return answer


def naive(similarity: MixtureOfLogits, items: ItemState, dtype: torch.dtype, query: QueryState, k: int) -> Answer:
    """The equation as it is written, each array of all pairs in memory, in blocks that fit it."""
    f, u, g, v = (tensor.to(dtype) for tensor in (query.components, query.gate, items.components, items.gate))
    gate = similarity.gate_weights()
    gate = gate._replace(**{name: getattr(gate, name).to(dtype) for name in gate._fields[:4]})
    size = max(NAIVE_PAIRS // len(f), 1)
    parts = [plain_scores(f, u, *block, gate).float() for block in zip(g.split(size), v.split(size), strict=True)]
    return Answer(torch.cat(parts, dim=1).topk(min(k, len(g)), dim=1).indices, torch.full((len(f),), len(g)))


def measured(
    bench: Bench, shape: Shape, corpus: Corpus, asked: Asked, size: int, exact: dict[str, Tensor]
) -> dict[str, Any]:
    """A method's row.

    Args:
        exact: what brute force found, of each kind of similarity; filled by those that come first.
    """
    query = take(corpus.queries, slice(size))
    ask = search(asked, corpus.similarity, corpus.items)

    def run() -> object:
        return ask(query, K)

    with torch.no_grad(), products_in(asked.precision):
        found, num_scored = ask(query, K)
        peak = peak_mb(run, bench.device)
        latency, repeats = median_ms(run, bench.device, bench.is_small)
        host = work_of_the_host(run, bench.device)
    kind = "dot_product" if asked.method == "dot_product" else f"mixture, {asked.share}"
    if asked.width == "plain" or asked.width.startswith("gathered"):
        exact[kind] = found
    row: dict[str, Any] = {"num_items": shape.num_items, "latency_ms": latency, "repeats": repeats}
    if kind in exact:  # brute force may itself have failed
        row |= {f"recall@{k}": recall(found, exact[kind], k) for k in (1, 10, K)}
    scored = num_scored.double().mean().item()
    row |= {"num_scored": scored, **shares(bench, corpus, asked, size, scored, latency)}
    return row | peak | host


def shares(
    bench: Bench, corpus: Corpus, asked: Asked, size: int, num_scored: float, latency_ms: float
) -> dict[str, float]:
    """What the method must do at least, and the time that the limits allow for it over the time it took."""
    num_items, num_item_components, width = corpus.items.components.shape
    num_pairs = corpus.queries.components.shape[1] * num_item_components
    num_compared = num_scored if asked.share < 1 else num_items
    cosines = 2.0 * size * num_compared * num_pairs * width
    gates = 4.0 * size * num_scored * num_pairs * GATE_HIDDEN if num_pairs > 1 else 0.0
    # No search reads the average and all components but the combined one.
    read = [corpus.items.components, corpus.items.gate, corpus.items.average if asked.num_by_average else None]
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in read if tensor is not None)
    num_bytes = round(num_bytes * num_compared / num_items)
    rates = bench.limits.flops_per_s
    products_s = cosines / rates[asked.precision] + gates / rates[asked.precision]
    memory_s = num_bytes / bench.limits.bytes_per_s
    return {
        "gflop": (cosines + gates) / 1e9,
        "read_mb": num_bytes / 1e6,
        "share_of_products": 1000 * products_s / latency_ms,
        "share_of_memory": 1000 * memory_s / latency_ms,
        "share_of_limit": 1000 * max(products_s, memory_s) / latency_ms,
    }


def recall(rows: Tensor, exact: Tensor, k: int) -> float:
    """The mean share of the exact k best among the first k found."""
    hits = (rows[:, :k, None] == exact[:, None, :k]).any(dim=1)
    return hits.double().mean().item()


def corpora(shape: Shape, bench: Bench) -> tuple[Corpus, Corpus]:
    """Clustered items under a Mixture of Logits that was trained to find the item which a noisy query was made of, and
    the same under a dot product of their representations."""
    device, steps = bench.device, SMALL_TRAINING_STEPS if bench.is_small else TRAINING_STEPS
    generator = torch.Generator(device).manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, device=device)

    cluster = torch.randint(500, (shape.num_items,), generator=generator, device=device)
    of_items = normal(500, shape.representation)[cluster].add_(normal(shape.num_items, shape.representation), alpha=0.5)
    torch.manual_seed(0)
    p_q, p_x = shape.components
    components = ComponentsConfig(width=shape.width)
    queries = QueryComponents(shape.representation, shape.components, components, TemperatureConfig()).to(device)
    items = ItemComponents(shape.representation, shape.components, components).to(device)
    config = MixtureOfLogitsConfig(num_query_components=p_q, num_item_components=p_x, gate_hidden=GATE_HIDDEN)
    similarity = MixtureOfLogits(config).to(device)
    modules = torch.nn.ModuleList([queries, items, similarity])
    optimizer = torch.optim.AdamW(modules.parameters(), lr=1e-3)
    for _ in range(steps):
        rows = torch.randint(shape.num_items, (256,), generator=generator, device=device)
        noisy = of_items[rows[:64]] + 0.3 * normal(64, shape.representation)
        scores, gates = similarity(queries(noisy), items(of_items[rows]))
        positive = torch.arange(64, device=device)
        own = gates[positive, positive]
        loss = F.cross_entropy(scores / similarity.temperature, positive)
        loss = loss + mutual_information(own, own.mean(dim=0), 0.001 / len(own))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    modules.eval()
    asked = of_items[:: shape.num_items // max(bench.batches)][: max(bench.batches)]
    asked = asked + 0.3 * normal(*asked.shape)
    with torch.no_grad():
        index = concatenate([items(part) for part in of_items.split(ENCODED_AT_ONCE)])
        mixture = Corpus(similarity, index, queries(asked))
    assert all(tensor.isfinite().all() for tensor in tensors_of(index))
    vectors = F.normalize(of_items, dim=1).unsqueeze(1)
    query = QueryState(F.normalize(asked, dim=1).unsqueeze(1), None, mixture.queries.temperature)
    return mixture, Corpus(DotProduct(DotProductConfig()), ItemState(vectors, None, None), query)
