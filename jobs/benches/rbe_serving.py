"""RBE over HTTP: how much longer does a request with a budget take than its ranker, beside requests that do nothing?

One client asks, in turns, a version of RBE (2,000 items in 2 shards, 100 supports, a budget of 300 calls) whose ranker
answers at once, so that all that is measured is overhead, and ingresses that do nothing: `one round` asks two
deployments at once; `same rounds` asks one, then two, then one, as RBE asks the ranker, the shards and the ranker.
`kept` repeats a query, whose supports are known, so that its first round falls away.

    python -m jobs.benches.rbe_serving [--requests 400]

Held fixed: one Ray Serve, one client, profile local. A yes is a median at most 1.5 times that of doing nothing in the
same rounds.
"""

import asyncio
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import tyro
from fastapi import FastAPI
from ray import serve as ray_serve
from ray.serve.handle import DeploymentHandle

from jobs.benches.http import PORT, TURN, Nothing, summary
from jobs.benches.record import Record
from rails_ray import on_ray
from rails_ray.families.config import DataConfig
from rails_ray.families.recipes import by_name
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.relevance_matrix import fill
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs
from rails_ray.reranking.rankers import Candidate
from rails_ray.schema.deployment import RankerPlacement
from rails_ray.schema.ranker import RankerConfig

NUM_ITEMS, NUM_QUERIES = 2000, 220
FREE = RankerConfig(path="jobs.benches.rbe_serving:free")

api = FastAPI()


def free(query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
    """A ranker that takes no time: shared letters, of the first few."""
    asked = query["text"][:8]
    return [float(sum(map(str.__eq__, asked, one.fields["text"]))) + len(one.fields["text"]) / 99 for one in candidates]


@ray_serve.deployment
@ray_serve.ingress(api)
class Rounds:
    """Rounds of calls that do nothing."""

    def __init__(self, rounds: list[list[DeploymentHandle[Any]]]) -> None:
        self.rounds = rounds

    @api.post("/")
    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        found = [await asyncio.gather(*(part.nothing.remote("x") for part in parts)) for parts in self.rounds]
        return {"found": found}


@dataclass(frozen=True)
class Arguments:
    requests: int = 400
    """Of each kind."""


def main(arguments: Arguments) -> None:
    record = Record("rbe_serving")
    with tempfile.TemporaryDirectory() as folder, cluster(10):
        publish(Path(folder))
        placement = DeploymentSize(ranker=RankerPlacement(num_cpus=0.1))
        args = ServeArgs(storage=folder, allow_anonymous=True, allow_code=[FREE.path])
        with served(args, placement, port=PORT, leave_serve=True) as url:
            one, two = [nothing("a")], [nothing("b"), nothing("c")]
            rounds_of = {"one round": [two], "two rounds": [two, one], "same rounds": [one, two, one]}
            for name, rounds in rounds_of.items():
                path = name.replace(" ", "-")
                made = Rounds.options(name=path, ray_actor_options={"num_cpus": 0.1}).bind(rounds)
                ray_serve.run(made, name=path, route_prefix=f"/{path}")
            times = measure(url, arguments.requests)
    for name, seconds in times.items():
        record.row(what=name, **summary(seconds))
    p50 = {name: summary(seconds)["p50_ms"] for name, seconds in times.items()}
    print(", ".join(f"{name} {value:.1f} ms" for name, value in p50.items()))
    for what, rounds in (("new", "same rounds"), ("kept", "two rounds")):
        print(f"{what}: {p50[what] / p50[rounds]:.2f} of {rounds}, {p50[what] / p50['one round']:.2f} of one round")


def nothing(name: str) -> Any:
    """A deployment that does nothing."""
    return Nothing.options(name=f"Nothing-{name}", ray_actor_options={"num_cpus": 0.1}).bind()


def measure(url: str, num_requests: int) -> dict[str, list[float]]:
    """Seconds of each kind of request, in turns."""
    fresh = (f"query number {number}" for number in itertools.count())
    paths = {"new": "/v1/search", "kept": "/v1/search"}
    paths |= {name: f"/{name.replace(' ', '-')}/" for name in ("one round", "two rounds", "same rounds")}
    times: dict[str, list[float]] = {name: [] for name in paths}
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        for turn in range(1 + num_requests // TURN):
            for name, path in paths.items():
                for _ in range(TURN):
                    text = next(fresh) if name == "new" else "the same"
                    body = {"queries": [{"text": text}], "k": 10, "budget": {"calls": 300}}
                    response = client.post(path, json=body).raise_for_status()
                    if turn:  # the first ones compile, connect and load
                        times[name].append(response.elapsed.total_seconds())
    return times


def publish(folder: Path) -> None:
    """A version of RBE, trained for one step."""
    texts = [
        f"{number * 7919 % 10_007:05d} of the items {'x' * (number % 17)}" for number in range(NUM_ITEMS + NUM_QUERIES)
    ]
    data = folder / "data"
    data.mkdir()
    pq.write_table(pa.table({"item_id": range(NUM_ITEMS), "text": texts[:NUM_ITEMS]}), data / "items.parquet")
    split = ["train"] * (NUM_QUERIES - 20) + ["valid"] * 10 + ["test"] * 10
    queries = pa.table({"query_id": range(NUM_QUERIES), "text": texts[NUM_ITEMS:], "split": split})
    pq.write_table(queries, data / "queries.parquet")
    matrix = fill(str(folder), "free", str(data), FREE, block_queries=50)
    config = by_name("text-rbe").with_family(ranker=FREE)
    config = replace(
        config, data=DataConfig(folder=matrix.folder), training=replace(config.training, num_steps=1, validate_every=0)
    )
    on_ray.train(config, str(folder), run="free", num_workers=1)
    on_ray.publish(str(folder), on_ray.encode(str(folder), "free", num_shards=2).version)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
