"""The measured figures that the planner builds on, copied from jobs/benches/results, which the wheel does not hold.

All are of float32: of two cores of an Intel Xeon without bf16 units, and `ON_GPU` of one GPU. A test compares them with
the rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rails_ray.cli.planning.searches import Search
from rails_ray.cli.planning.shapes import Shape

CORES = 2  # of the machine that was measured
K = 100  # of all rows of table5.jsonl
WORST_FACTOR = 1.8  # between the planner's time and a row of table5.jsonl, either way


@dataclass(frozen=True)
class Figure:
    """One figure of one row.

    Args:
        file: in jobs/benches/results.
        execution: the run of the bench that wrote the row.
        date: of that run.
        where: fields of the row that tell it from the others of the run.
        name: field of the figure; a dot leads into an object.
    """

    file: str
    execution: str
    date: str
    where: Mapping[str, str | int]
    name: str
    value: float


@dataclass(frozen=True)
class MeasuredSearch:
    """A search that was timed."""

    num_items: int
    shape: Shape
    search: Search
    figure: Figure


# num_items and Shape of each shape of jobs.benches.table5
SHAPES = {
    "small": (50_000, Shape(num_query_components=8, num_item_components=8, width=32)),
    "ml20m": (24_186, Shape(num_query_components=8, num_item_components=4, width=128)),
    "books": (674_044, Shape(num_query_components=8, num_item_components=8, width=32)),
    "nq320k": (109_739, Shape(num_query_components=4, num_item_components=4, width=768)),
}


def search_of(method: str, width: str, batch: int) -> Search:
    """The search of a row of table5.jsonl by its columns."""
    widths = [int(number) for number in width.split("_")] if width[0].isdecimal() else []
    match method:
        case "per_embedding":
            return Search(method=method, num_per_embedding=widths[0], k=K, batch=batch)
        case "average":
            return Search(method=method, num_candidates=widths[0], k=K, batch=batch)
        case "combined":
            return Search(method=method, num_per_embedding=widths[0], num_candidates=widths[1], k=K, batch=batch)
    return Search(method=method, k=K, batch=batch)


def _table5(execution: str, shape: str, batch: int, method: str, width: str, latency_ms: float) -> MeasuredSearch:
    where: dict[str, str | int] = {"shape": shape, "batch": batch, "method": method, "width": width}
    figure = Figure("table5.jsonl", execution, "2026-11-21", where, "latency_ms", latency_ms)
    return MeasuredSearch(*SHAPES[shape], search_of(method, width, batch), figure)


# As many rows as kinds of work; each row is one in which its kind weighs much.
TIMED = (
    _table5("32b2d5cc", "nq320k", 32, "brute_force", "plain", 869.7237619999214),  # products
    _table5("1a19dd6b", "books", 32, "brute_force", "plain", 7056.716182996752),  # special functions
    _table5("32b2d5cc", "nq320k", 1, "average", "200", 14.983813001890667),  # reading
    _table5("1a19dd6b", "books", 1, "brute_force", "plain", 406.2436340027489),  # reordering gates
    _table5("1a19dd6b", "books", 32, "per_embedding", "50", 3441.6908159982995),  # selecting
    _table5("ea984782", "small", 32, "average", "4000", 164.5293165001931),  # gathering
    _table5("ea984782", "small", 1, "average", "200", 1.7662814989307662),  # the call itself
)

GPU, GPU_NAME = "h100", "NVIDIA H100 80GB HBM3"  # of ON_GPU, in `machines.GPUS` and in the rows


def _on_gpu(shape: str, batch: int, latency_ms: float) -> MeasuredSearch:
    where: dict[str, str | int] = {"shape": shape, "batch": batch, "method": "on_gpu"}
    figure = Figure("gpu.jsonl", "732e724c", "2026-11-27", where, "latency_ms", latency_ms)
    return MeasuredSearch(*SHAPES[shape], Search(k=K, batch=batch), figure)


# The exact scan of a mixture, by shape: of one query and of 32.
ON_GPU = {
    one.shape: (one, many)
    for one, many in (
        (_on_gpu("books", 1, 0.9795520007610321), _on_gpu("books", 32, 3.684320092201233)),
        (_on_gpu("ml20m", 1, 0.722815990447998), _on_gpu("ml20m", 32, 0.765311986207962)),
        (_on_gpu("nq320k", 1, 0.9797280132770538), _on_gpu("nq320k", 32, 4.929216146469116)),
    )
}

# A search of 10 of the 3,963 emoji in 2 shards over HTTP, profile production: all of it, from client to client.
SEARCHED_OVER_HTTP = MeasuredSearch(
    1_982,
    Shape(num_query_components=2, num_item_components=2, width=64, gate_hidden=16),
    Search(k=10),
    Figure("http.jsonl", "ec53ef8f", "2026-11-21", {"profile": "production"}, "search.p50_ms", 8.617859999503708),
)

# Such requests a second by eight clients, profile production, where two cores are client, proxy, router and shards.
REQUESTS_PER_S = Figure(
    "chaos.jsonl",
    "2de066ac",
    "2026-11-22",
    {"profile": "production", "fault": "8 clients"},
    "per_s",
    150.54614357987813,
)
