"""Shards, replicas and times that meet a demand. The formulas stand in `rails_ray.cli.planning`."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rails_ray.cli.planning import measured
from rails_ray.cli.planning.machines import EFFICIENCY, GPU_CALL_S, RESOURCES, Cpu, Machine
from rails_ray.cli.planning.searches import Search, index_bytes, work
from rails_ray.cli.planning.shapes import Names, Shape

MEMORY_FRACTION = 0.8  # the rest is for the process, CUDA's own memory and what a search takes
UTILISATION = 0.5  # at most: then a replica is free for at least every other request
MOST_SHARDS = 1000  # their names have three digits
WIDENED_BELOW = 4  # lists that hold less than 4 k items in all may have to be widened: they overlap


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Demands on a deployment.

    Args:
        qps: queries a second.
        latency_ms: most that the median request may take.
        availability: fewest replicas of each shard and of the router.
        storage_gb_s: what a replica reads from storage a second, in GB. The default is a network card of
            10 Gbit/s at 80%.
    """

    qps: float = 100.0
    latency_ms: float = 50.0
    availability: int = 2
    storage_gb_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("qps", "latency_ms", "storage_gb_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name):g}")
        if self.availability < 1:
            raise ValueError(f"availability must be at least 1, got {self.availability}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Resources that a deployment takes.

    Args:
        num_items: X.
        num_shards: N, the larger of the two that follow.
        num_shards_by_memory: the fewest shards that fit.
        num_shards_by_latency: the fewest shards whose search keeps the latency.
        shard_items: items in the largest shard.
        item_bytes: bytes of an item in each column of its state.
        stored_bytes: Parquet of the whole corpus, at most.
        state_bytes, index_bytes: of a shard.
        replica_bytes: what a shard needs of the machine's memory.
        memory_bytes: the machine's memory, of which MEMORY_FRACTION may be used.
        host_bytes: what a shard needs of the host's memory; on a CPU the same.
        load_s: time in which a replica reads its shard.
        around_ms: what a request takes besides its search.
        search_ms: a search of one shard.
        parts_ms: its parts; on a GPU at their peaks.
        measured_on: the GPU whose measured rows of this shape give `search_ms`; None where a roofline does, and on
            CPUs, which have units from rows of several shapes.
        request_ms: both together.
        bound_by: the resource that takes most of the search.
        num_replicas: R of each shard.
        num_replicas_by_load: R by the queries alone.
        busy_fraction: of a replica's time.
        num_routers: replicas of the router, of two cores each.
    """

    num_items: int
    num_shards: int
    num_shards_by_memory: int
    num_shards_by_latency: int
    shard_items: int
    item_bytes: dict[str, int]
    stored_bytes: int
    state_bytes: int
    index_bytes: float
    replica_bytes: float
    memory_bytes: float
    host_bytes: float
    load_s: float
    around_ms: float
    search_ms: float
    parts_ms: dict[str, float]
    measured_on: str | None
    request_ms: float
    bound_by: str
    num_replicas: int
    num_replicas_by_load: int
    busy_fraction: float
    num_routers: int

    @property
    def num_machines(self) -> int:
        """Replicas of all shards: GPUs, or pairs of CPU cores."""
        return self.num_shards * self.num_replicas

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "num_machines": self.num_machines}


@dataclass(frozen=True)
class PlannedCorpus:
    """X items of a shape, how they are searched, and on what."""

    num_items: int
    shape: Shape
    search: Search
    machine: Machine
    names: Names

    def __post_init__(self) -> None:
        if self.num_items < 1:
            raise ValueError(f"items must be at least 1, got {self.num_items}")
        lists = self.search.lists(self.shape)
        num_listed = sum(one.num_lists * one.width for one in lists)
        if lists and num_listed < self.search.k:
            raise ValueError(
                f"the lists of the first stage must hold at least the k {self.search.k} items, got {num_listed}: "
                "raise num_candidates or num_per_embedding"
            )
        if self.search.method == "ann" and self.shape.num_pairs > 1:
            raise ValueError(
                f"method ann must be for a dot product, which has 1 component on each side, got "
                f"{self.shape.num_query_components} and {self.shape.num_item_components}: take method average"
            )
        if self.search.index == "hnsw" and self.machine.is_gpu:
            raise ValueError(
                f"index hnsw must be searched on a CPU, as in FAISS, got gpu {self.machine.name}: "
                "take index ivf or flat, or gpu none"
            )

    @property
    def stored_item_bytes(self) -> int:
        return self.names.stored_bytes + self.shape.state_bytes

    @property
    def rows_of_gpu(self) -> tuple[measured.MeasuredSearch, measured.MeasuredSearch] | None:
        """The rows that a GPU's time is taken from, of one query and of several; None where none is of this GPU and
        shape, of such a search, or another efficiency is wanted than that of the rows."""
        machine = self.machine
        if (machine.name, machine.efficiency) != (measured.GPU, EFFICIENCY) or self.search.lists(self.shape):
            return None
        return measured.ON_GPU.get(self.shape) if self.search.k <= measured.K else None

    def search_s(self, num_items: int) -> float:
        """Seconds of a search of so many items."""
        if self.rows_of_gpu is None:
            return self.machine.seconds(work(self.shape, self.search, num_items), self.shape.dtype)
        of_item, batches = [], []
        for row in self.rows_of_gpu:
            of_item.append((row.figure.value / 1000 - GPU_CALL_S) / row.num_items)
            batches.append(row.search.batch)
        slope = (of_item[1] - of_item[0]) / (batches[1] - batches[0])
        return GPU_CALL_S + num_items * (of_item[0] + slope * (self.search.batch - batches[0]))

    def host_bytes(self, num_items: int) -> float:
        """Memory that a shard takes on the host, where the state stays even if a GPU holds a copy."""
        index = 0 if self.machine.is_gpu else index_bytes(self.shape, self.search, num_items)
        return num_items * (self.shape.state_bytes + self.names.held_bytes) + index

    def replica_bytes(self, num_items: int) -> float:
        """Memory that a shard takes on its machine."""
        if not self.machine.is_gpu:
            return self.host_bytes(num_items)
        scores = 0 if self.search.lists(self.shape) else 4 * self.search.batch * num_items
        return num_items * self.shape.state_bytes + index_bytes(self.shape, self.search, num_items) + scores

    def fits(self, num_items: int) -> bool:
        return self.replica_bytes(num_items) <= MEMORY_FRACTION * self.machine.memory_bytes


def around_s() -> float:
    """Seconds of a request besides its search: HTTP, router, encoding a query, asking 2 shards, merging."""
    row = measured.SEARCHED_OVER_HTTP
    return row.figure.value / 1000 - Cpu().seconds(work(row.shape, row.search, row.num_items), row.shape.dtype)


def plan(corpus: PlannedCorpus, demand: Demand) -> Plan:
    """Compute what it takes to meet a demand.

    Raises:
        ValueError: if no number of shards meets it.
    """
    around_ms = 1000 * around_s()
    by_memory, by_latency = _shards_by_memory(corpus), _shards_by_latency(corpus, demand.latency_ms, around_ms)
    num_shards = max(by_memory, by_latency)
    shard_items = -(-corpus.num_items // num_shards)
    parts = corpus.machine.parts(work(corpus.shape, corpus.search, shard_items), corpus.shape.dtype)
    search_s = corpus.search_s(shard_items)
    requests_per_s = demand.qps / corpus.search.batch
    busy = requests_per_s * search_s  # replicas of a shard, on average
    by_load = max(math.ceil(busy / UTILISATION), 1)
    num_replicas = max(by_load, demand.availability)
    num_routers = math.ceil(requests_per_s / (measured.REQUESTS_PER_S.value * UTILISATION))
    return Plan(
        num_items=corpus.num_items,
        num_shards=num_shards,
        num_shards_by_memory=by_memory,
        num_shards_by_latency=by_latency,
        shard_items=shard_items,
        item_bytes=corpus.shape.columns,
        stored_bytes=corpus.num_items * corpus.stored_item_bytes,
        state_bytes=shard_items * corpus.shape.state_bytes,
        index_bytes=index_bytes(corpus.shape, corpus.search, shard_items),
        replica_bytes=corpus.replica_bytes(shard_items),
        memory_bytes=corpus.machine.memory_bytes,
        host_bytes=corpus.host_bytes(shard_items),
        load_s=shard_items * corpus.stored_item_bytes / (1e9 * demand.storage_gb_s),
        around_ms=around_ms,
        search_ms=1000 * search_s,
        parts_ms={name: 1000 * seconds for name, seconds in parts.items()},
        measured_on=None if corpus.rows_of_gpu is None else measured.GPU_NAME,
        request_ms=around_ms + 1000 * search_s,
        bound_by=bound_by(parts, corpus.machine.is_gpu),
        num_replicas=num_replicas,
        num_replicas_by_load=by_load,
        busy_fraction=busy / num_replicas,
        num_routers=max(num_routers, demand.availability),
    )


def one_process_busy(corpus: PlannedCorpus, demand: Demand) -> float | None:
    """Share of its time that a server of one process on CPU cores is busy; None if it cannot meet the demand.

    A request takes as long there as on the machine whose requests a second were measured, and its search besides.
    """
    if not corpus.fits(corpus.num_items) or 1000 * (around_s() + corpus.search_s(corpus.num_items)) > demand.latency_ms:
        return None
    request_s = 1 / measured.REQUESTS_PER_S.value + corpus.search_s(corpus.num_items)
    busy = demand.qps / corpus.search.batch * request_s
    return busy if busy <= UTILISATION else None


def _shards_by_memory(corpus: PlannedCorpus) -> int:
    found = fewest_shards(corpus, corpus.fits)
    if found is None:
        raise ValueError(
            f"memory_gb must hold a shard of {_smallest(corpus):,} items, as there are {MOST_SHARDS:,} shards at most, "
            f"got {corpus.machine.memory_bytes / 1e9:g}: take a narrower dtype, or more memory"
        )
    return found


def _shards_by_latency(corpus: PlannedCorpus, latency_ms: float, around_ms: float) -> int:
    if latency_ms <= around_ms:
        raise ValueError(
            f"latency_ms must be above the {around_ms:.1f} that a request was measured to take besides its search, got "
            f"{latency_ms:g}: no number of shards reaches it"
        )
    found = fewest_shards(corpus, lambda num_items: around_ms + 1000 * corpus.search_s(num_items) <= latency_ms)
    if found is None:
        least_ms = around_ms + 1000 * corpus.search_s(_smallest(corpus))
        raise ValueError(
            f"latency_ms must be at least {math.ceil(10 * least_ms) / 10:.1f} even with shards of "
            f"{_smallest(corpus):,} items, got {latency_ms:g}: allow more, or take a smaller batch or another method"
        )
    return found


def fewest_shards(corpus: PlannedCorpus, is_enough: Callable[[int], bool]) -> int | None:
    """The fewest shards whose number of items is small enough; None if MOST_SHARDS are too few."""
    most = min(MOST_SHARDS, corpus.num_items)
    shards = range(1, most + 1)
    found = bisect_left(shards, True, key=lambda num_shards: is_enough(-(-corpus.num_items // num_shards)))
    return shards[found] if found < most else None


def _smallest(corpus: PlannedCorpus) -> int:
    """Items in the largest of as many shards as there may be."""
    return -(-corpus.num_items // min(MOST_SHARDS, corpus.num_items))


def bound_by(parts: Mapping[str, float], is_at_once: bool) -> str:
    """The resource that takes most of a search.

    Args:
        parts: seconds of each part.
        is_at_once: whether the parts run at the same time, so that the longest of them decides.
    """
    if is_at_once:
        return RESOURCES[max(parts, key=lambda name: parts[name])]
    sums = dict.fromkeys(RESOURCES.values(), 0.0)
    for name, seconds in parts.items():
        sums[RESOURCES[name]] += seconds
    return max(sums, key=lambda name: sums[name])


def may_widen(corpus: PlannedCorpus) -> bool:
    """Return whether lists that overlap are so short that a search may have to double them and start again."""
    lists = corpus.search.lists(corpus.shape)
    num_listed = sum(one.num_lists * one.width for one in lists)
    return sum(one.num_lists for one in lists) > 1 and num_listed < WIDENED_BELOW * corpus.search.k


def batches(corpus: PlannedCorpus, demand: Demand, sizes: Iterable[int]) -> dict[int, Plan | None]:
    """The plan for requests of so many queries each; None where no number of shards meets the demand."""
    found: dict[int, Plan | None] = {}
    for size in sorted(sizes):
        try:
            found[size] = plan(replace(corpus, search=replace(corpus.search, batch=size)), demand)
        except ValueError:
            found[size] = None
    return found
