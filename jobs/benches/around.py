"""Around a search: what does each layer of a server cost a request of one query, and of 32?

A graph of drawn vectors answers a request once. Then each layer does its work on that request and that answer again and
again, in a loop of its own, so that a row has the layer's time and nothing else's: microseconds of a request, a median
of loops. `search` is the search itself, in process, beside which to read the others.

- read, validate: a body by `json_bodies`, and the model of its fields;
- generator, timers: rounds that ask the shards once and are answered by nobody; what `stages.timed` adds to them;
- batching: what `Batches` adds to a search that is done, with its two turns of the event loop;
- results: a `QueryResult` of each query, as validated when it is made;
- metrics: counting an answer and its request by prometheus_client, and noting its drift;
- write: an answer's JSON; orjson: the same from dictionaries that are there already.

    python -m jobs.benches.around [--num-items 10000] [--loops 7] [--calls 300]

A layer is to be looked at if it takes more than a twentieth of `search`.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import orjson
import tyro
import uvloop
from numpy.typing import NDArray
from rich.console import Console

from jobs.benches.record import Record
from rails_ray import local
from rails_ray.schema.requests import SearchRequest
from rails_ray.schema.responses import QueryResult
from rails_ray.search.rounds import AskShards, Done, Rounds, next_step
from rails_ray.serving.batching import Batches
from rails_ray.serving.engine import Answered
from rails_ray.serving.http.instruments import PrometheusMetrics
from rails_ray.serving.http.json_bodies import read_json
from rails_ray.serving.http.streaming import pieces
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.stages import timed
from rails_ray.serving.traffic import Traffic

NAME, K = "around", 10
SIZES = (1, 32)  # queries of a request


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """
    Args:
        width: numbers of a vector.
        loops: of which the median counts.
        calls: of a loop.
    """

    num_items: int = 10_000
    width: int = 256
    loops: int = 7
    calls: int = 300


def main(arguments: Arguments) -> None:
    vectors = np.random.default_rng(0).standard_normal((arguments.num_items, arguments.width), dtype=np.float32)
    version, record = local.build(vectors, index="hnsw"), Record(NAME)
    for num_queries in SIZES:
        for layer, us in measured(version, vectors[:num_queries], arguments):
            record.row(layer=layer, num_queries=num_queries, num_items=len(vectors), us=round(us, 2))
            Console().print(f"{num_queries:>2} {layer:<10} {us:>9.1f} us")


def measured(version: LocalVersion, queries: NDArray[np.float32], arguments: Arguments) -> Iterator[tuple[str, float]]:
    """Each layer, and the microseconds that a request takes it."""

    def us(work: Callable[[], Any]) -> float:
        return 1e6 * median(seconds(work, arguments.calls) for _ in range(arguments.loops))

    def us_of_waiting(call: Callable[[], Awaitable[Any]]) -> float:
        return 1e6 * median(uvloop.run(waited(call, arguments.calls)) for _ in range(arguments.loops))

    body = orjson.dumps({"queries": [{"embedding": query} for query in queries.tolist()], "k": K, "method": "ann"})
    fields = read_json(body)
    request = SearchRequest.model_validate(fields)
    found = version.carry_out(version.engine.search(request))
    results = list(found.results)
    columns = [dict(result) for result in results]
    plain = {**found.head.model_dump(), "results": [result.model_dump() for result in results]}

    def done() -> Answered:
        return Answered(found.head, iter(results), found.num_parts, found.stages)

    async def search(_: SearchRequest) -> Answered:
        return done()

    batches = Batches(search, version.engine.limits.max_answered_items)
    traffic = Traffic(search, version.engine, PrometheusMetrics())

    def counted() -> None:
        traffic.metrics.request("/v1/search", 200)
        for _ in traffic.counted(done()):
            pass

    asked = us(lambda: carried_out(asking()))
    yield "search", us(lambda: list(version.carry_out(version.engine.search(request)).results))
    yield "read", us(lambda: read_json(body))
    yield "validate", us(lambda: SearchRequest.model_validate(fields))
    yield "generator", asked
    yield "timers", us(lambda: carried_out(timed(asking()))) - asked
    yield "batching", us_of_waiting(lambda: batches.search(request)) - us_of_waiting(lambda: search(request))
    yield "results", us(lambda: [QueryResult(**own) for own in columns])
    yield "metrics", us(counted) - us(lambda: list(done().results))
    yield "write", us(lambda: b"".join(pieces(found.head, iter(results))))
    yield "orjson", us(lambda: orjson.dumps(plain))


def asking() -> Rounds[int]:
    """Rounds that ask the shards once."""
    yield AskShards("nothing", ())
    return 0


def carried_out(rounds: Rounds[Any]) -> Any:
    """The value of rounds that nobody answers."""
    step = next_step(rounds, None)
    while not isinstance(step, Done):
        step = next_step(rounds, [])
    return step.value


def seconds(work: Callable[[], Any], calls: int) -> float:
    """The seconds of a call."""
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began) / calls


async def waited(call: Callable[[], Awaitable[Any]], calls: int) -> float:
    """The seconds of a call that is waited for."""
    began = time.perf_counter()
    for _ in range(calls):
        await call()
    return (time.perf_counter() - began) / calls


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
