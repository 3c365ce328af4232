"""Plan a deployment before anything is built: memory, shards, replicas, latency, storage, time to load."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.table import Table

from rails_ray.cli.base import out
from rails_ray.cli.planning import advice, measured
from rails_ray.cli.planning.machines import EFFICIENCY, GPUS, NO_GPU, machine
from rails_ray.cli.planning.plans import MEMORY_FRACTION, UTILISATION, Demand, Plan, PlannedCorpus, batches, plan
from rails_ray.cli.planning.quantities import count, shown_bytes, shown_seconds
from rails_ray.cli.planning.searches import INDEXES, METHODS, Search
from rails_ray.cli.planning.shapes import DTYPES, Names, Shape

SIMILARITIES = ("mixture", "dot")
BATCHES = (1, 8, 32)  # queries together, to show what batching buys


def _one_of(*names: str) -> Any:
    return tyro.conf.arg(metavar="|".join(names))


@dataclass(frozen=True, kw_only=True)
class PlanDeployment:
    """Plan a deployment: memory, shards, replicas, latency and storage. Nothing is built, and no cluster is needed.

    Args:
        items: Items of the corpus, such as 4000, 10k, 100M or 1.5B.
        similarity: mixture: Mixture of Logits; dot: dot product, which has one component on each side.
        query_components: P_Q, components of a query. If left out: 8, or 1 for a dot product.
        components: P_X, components of an item. If left out: 4, or 1 for a dot product.
        width: d, width of a component.
        dtype: Numbers of the components, in storage and in memory.
        gate_hidden: H, hidden width of the gate that reads the cosines.
        method: Method of search; ann is for a dot product.
        num_candidates: Items that average, ann and combined take by the average component. If left out: k for ann, and
            1000 for the others.
        num_per_embedding: Items that per_embedding and combined take by each pair of components.
        index: Index of the first stage, for every method but brute_force.
        k: Results of a query.
        batch: Queries of a request, which are searched together.
        qps: Queries a second, of all requests together.
        latency_ms: Most that the median request may take.
        availability: Fewest replicas of each shard and of the router; with 2, one may die.
        gpu: GPU of a replica; none: two CPU cores, as measured.
        memory_gb: Memory of a replica. If left out: the GPU's, or 16 for two CPU cores.
        efficiency: Share of a GPU's peak that a search reaches; by default what an H100 reached.
        storage_gb_s: GB a second that a replica reads from storage. 1 is a network card of 10 Gbit/s at 80%.
        id_bytes: Bytes of an item id: 8 for an integer, its length and 4 for a string.
        title_bytes: Bytes of a title, its length and 4; 0 if there are none.
    """

    items: str
    similarity: Annotated[str, _one_of(*SIMILARITIES)] = "mixture"
    query_components: int | None = None
    components: int | None = None
    width: int = 64
    dtype: Annotated[str, _one_of(*DTYPES)] = "fp32"
    gate_hidden: int = 128
    method: Annotated[str, _one_of(*METHODS)] = "brute_force"
    num_candidates: int | None = None
    num_per_embedding: int = 50
    index: Annotated[str, _one_of(*INDEXES)] = "flat"
    k: int = 10
    batch: int = 1
    qps: float = 100.0
    latency_ms: float = 50.0
    availability: int = 2
    gpu: Annotated[str, _one_of(*GPUS, NO_GPU)] = NO_GPU
    memory_gb: float | None = None
    efficiency: float = EFFICIENCY
    storage_gb_s: float = 1.0
    id_bytes: int = 8
    title_bytes: int = 36

    def run(self) -> dict[str, Any]:
        corpus, demand = self.corpus(), self.demand()
        made = plan(corpus, demand)
        by_batch = batches(corpus, demand, {*BATCHES, self.batch})
        conclusion = advice.conclusion(corpus, demand, made, by_batch)
        notes, commands = advice.notes(corpus, made), advice.commands(corpus, made)
        out.print(_table(corpus, demand, made))
        out.print(_batches(corpus, by_batch))
        for line in (*conclusion, *(f"note: {note}" for note in notes), *(f"next: {command}" for command in commands)):
            out.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)
        return {
            **made.to_dict(),
            "batches": {str(size): None if one is None else one.to_dict() for size, one in by_batch.items()},
            "conclusion": conclusion,
            "notes": notes,
            "commands": commands,
        }

    def corpus(self) -> PlannedCorpus:
        """Raises:
        ValueError: if a field is out of range, or two do not go together.
        """
        num_items = count(self.items, "items")
        search = Search(
            method=self.method,
            index=self.index,
            num_candidates=self.num_candidates,
            num_per_embedding=self.num_per_embedding,
            k=min(self.k, max(num_items, 1)),
            batch=self.batch,
        )
        replica = machine(self.gpu, memory_gb=self.memory_gb, efficiency=self.efficiency)
        names = Names(id_bytes=self.id_bytes, title_bytes=self.title_bytes)
        return PlannedCorpus(num_items, self.shape(), search, replica, names)

    def shape(self) -> Shape:
        """Raises:
        ValueError: if the similarity is unknown, or is a dot product of several components.
        """
        if self.similarity not in SIMILARITIES:
            raise ValueError(f"similarity must be one of {', '.join(SIMILARITIES)}, got {self.similarity!r}")
        given = (self.query_components, self.components)
        defaults = (1, 1) if self.similarity == "dot" else (8, 4)
        num_query, num_item = (default if own is None else own for own, default in zip(given, defaults, strict=True))
        if self.similarity == "dot" and (num_query, num_item) != (1, 1):
            raise ValueError(
                f"similarity dot must have 1 component on each side, got {num_query} and {num_item}: leave "
                "--query-components and --components out, or take similarity mixture"
            )
        return Shape(
            num_query_components=num_query,
            num_item_components=num_item,
            width=self.width,
            dtype=self.dtype,
            gate_hidden=self.gate_hidden,
        )

    def demand(self) -> Demand:
        """Raises:
        ValueError: if a number is out of range.
        """
        return Demand(
            qps=self.qps,
            latency_ms=self.latency_ms,
            availability=self.availability,
            storage_gb_s=self.storage_gb_s,
        )


def _table(corpus: PlannedCorpus, demand: Demand, made: Plan) -> Table:
    shape, names, on_gpu = corpus.shape, corpus.names, corpus.machine.is_gpu
    size = f"{shape.num_query_components} x {shape.num_item_components} x {shape.width}, {shape.dtype}"
    kind = "Mixture of Logits" if shape.num_pairs > 1 else "dot product"
    queries = "1 query" if corpus.search.batch == 1 else f"{corpus.search.batch} queries"
    first_stage = f", index {corpus.search.index}" if corpus.search.lists(shape) else ""
    title = (
        f"{made.num_items:,} items, {kind} {size}, {corpus.search.method}{first_stage}, "
        f"{queries} a request, on {corpus.machine.name}"
    )
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    columns = ", ".join(f"{name} {size_bytes:,} B" for name, size_bytes in made.item_bytes.items())
    table.add_row("an item's state", f"{shape.state_bytes:,} B", columns)
    stored = f"Parquet at most, with {names.id_bytes} B an id and {names.title_bytes} B a title"
    table.add_row("storage", shown_bytes(made.stored_bytes), stored)
    fewest = f"memory asks for {made.num_shards_by_memory:,}, the latency for {made.num_shards_by_latency:,}"
    table.add_row("shards", f"{made.num_shards:,}", f"of {made.shard_items:,} items; {fewest}")
    index = f", of it {shown_bytes(made.index_bytes)} index {corpus.search.index}" if made.index_bytes else ""
    limit = f"of {shown_bytes(made.memory_bytes)}, of which {MEMORY_FRACTION:.0%} may be used{index}"
    table.add_row("memory of a shard", shown_bytes(made.replica_bytes), limit)
    if on_gpu:
        table.add_row("its host's memory", shown_bytes(made.host_bytes), "state, ids and titles")
    table.add_row("time to load a shard", shown_seconds(made.load_s), f"at {demand.storage_gb_s:g} GB/s from storage")
    table.add_row("search", shown_seconds(made.search_ms / 1000), _parts(corpus, made))
    around = f"{shown_seconds(made.around_ms / 1000)} of it around the search, as measured over HTTP with 2 shards"
    table.add_row("request", shown_seconds(made.request_ms / 1000), f"at most {demand.latency_ms:g} ms; {around}")
    busy = f"of each shard, {made.busy_fraction:.0%} busy with {demand.qps:,g} queries a second"
    table.add_row("replicas", f"{made.num_replicas:,}", busy)
    table.add_row(corpus.machine.unit, f"{advice.num_units(corpus, made):,}", "of all replicas of all shards")
    each = measured.REQUESTS_PER_S.value * UTILISATION
    routers = f"of {measured.CORES} CPU cores, for {each:.0f} requests a second each, {UTILISATION:.0%} of the measured"
    table.add_row("routers", f"{made.num_routers:,}", routers)
    return table


def _parts(corpus: PlannedCorpus, made: Plan) -> str:
    """The parts of a search that take more than a hundredth of it."""
    most = sorted(made.parts_ms.items(), key=lambda part: -part[1])
    shown = ", ".join(f"{name} {shown_seconds(ms / 1000)}" for name, ms in most if ms > made.search_ms / 100)
    if not corpus.machine.is_gpu:
        return shown
    if made.measured_on is not None:
        return f"by rows of this shape that were measured on one {made.measured_on}"
    return f"by a roofline: the longest of {shown} at the peak, of which {corpus.machine.efficiency:.0%} is reached"


def _batches(corpus: PlannedCorpus, by_batch: Mapping[int, Plan | None]) -> Table:
    table = Table(title="what batching buys", title_justify="left")
    for heading in ("queries a request", "search", "request", "shards", "replicas", corpus.machine.unit, "routers"):
        table.add_column(heading, justify="right")
    for size, one in by_batch.items():
        if one is None:
            table.add_row(f"{size}", "over the budget")
            continue
        times = shown_seconds(one.search_ms / 1000), shown_seconds(one.request_ms / 1000)
        counts = (one.num_shards, one.num_replicas, advice.num_units(corpus, one), one.num_routers)
        table.add_row(f"{size}", *times, *(f"{number:,}" for number in counts))
    return table
