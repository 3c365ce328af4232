"""Cut-offs: what do they cost a request, and do thresholds that are pushed into the shards ever cost more than a top-k?

inside: for batches of 32 queries and lists of 1,000 items, the time to make the thresholds (`floor`) and to cut
(`cut`) by each policy, in one process.

served: one client asks, in turns, for 32 queries over the 3,963 emoji in 2 shards, under a model that was trained for
--steps steps and calibrated: the 1,000 best, and each cut-off with max_items 1,000.

    python -m jobs.benches.cutoffs [--requests 200] [--steps 200]

A yes is less than 1 ms inside for every policy (tables of distributions made before), and a median of each threshold
search at most that of the top-k. `nucleus` and
`probability` ask the shards twice and are there to see what that costs.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from jobs.benches.http import summary
from jobs.benches.record import Record
from rails_ray import on_ray
from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.calibration import Calibration, Positives
from rails_ray.cutoffs.distributions import UNIFORM, BetaDistribution, ExpDistribution, sphere
from rails_ray.cutoffs.policies import (
    CoverageCutoff,
    MassCutoff,
    NucleusCutoff,
    ProbabilityCutoff,
    ScoreCutoff,
    TopKCutoff,
    cut,
)
from rails_ray.data.emoji import SHOWCASE
from rails_ray.families.recipes.emoji import emoji_mol
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import ServeArgs

PORT = 8322
B, K, TURN, REPEATS = 32, 1000, 10, 200
CUTOFFS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": K},
    "score": {"score": 0.5},
    "mass": {"mass": 0.99},
    "mass sphere": {"mass": 0.99, "background": "sphere"},
    "coverage .9": {"coverage": 0.9},
    "coverage .99": {"coverage": 0.99},
    "nucleus": {"nucleus": 0.9},
    "probability": {"probability": 0.001},
}


@dataclass(frozen=True)
class Arguments:
    """
    requests: of each cut-off.
    steps: of training.
    """

    requests: int = 200
    steps: int = 200


def main(arguments: Arguments) -> None:
    record = Record("cutoffs")
    table = Table("", "policy", "ms", "beside top_k", title=f"{B} queries, at most {K} items each")
    for name, milliseconds in inside().items():
        record.row(kind="inside", policy=name, ms=milliseconds)
        table.add_row("inside", name, f"{milliseconds:.3f}", "")
    times = over_http(arguments)
    for name, values in times.items():
        ratio = values["p50_ms"] / times["top_k"]["p50_ms"]
        record.row(kind="served", policy=name, ratio=ratio, **values)
        table.add_row("served", name, f"{values['p50_ms']:.1f}", f"{ratio:.2f}")
    Console().print(table)


def inside() -> dict[str, float]:
    """Medians in milliseconds."""
    generator = np.random.default_rng(0)
    scores = np.sort(generator.uniform(-0.2, 0.9, (B, K)).astype(np.float32), axis=1)[:, ::-1]
    temperature = generator.uniform(0.01, 0.2, B).astype(np.float32)
    query = np.repeat(np.arange(2000), 3)
    uniform = BetaDistribution(UNIFORM)
    of_queries = generator.uniform(0.01, 0.2, 2000)
    positives = Positives.of(query, generator.uniform(0.2, 0.9, len(query)), of_queries, uniform)
    policies: dict[str, Cutoff] = {
        "top_k": TopKCutoff(K),
        "score": ScoreCutoff(0.5),
        "mass": MassCutoff(0.99, uniform),
        "mass sphere": MassCutoff(0.99, BetaDistribution(sphere(64))),
        "mass sphere, ExpNCE": MassCutoff(0.99, ExpDistribution(sphere(64))),
        "coverage .9": CoverageCutoff(0.9, Calibration(positives, uniform)),
        "nucleus": NucleusCutoff(beta_logit, np.zeros(B), 0.9, K),
        "probability": ProbabilityCutoff(beta_logit, np.zeros(B), 0.001),
    }
    short = np.zeros(B, dtype=bool)
    return {name: _median_ms(lambda own=own: _cut(own, scores, temperature, short)) for name, own in policies.items()}


def _cut(policy: Cutoff, scores: np.ndarray, temperature: np.ndarray, short: np.ndarray) -> None:
    policy.floor(temperature)
    cut(scores, temperature, policy, short)


def _median_ms(work: Callable[[], None]) -> float:
    work()
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return 1e3 * statistics.median(seconds)


def over_http(arguments: Arguments) -> dict[str, dict[str, float]]:
    config = emoji_mol()
    config = replace(config, training=replace(config.training, num_steps=arguments.steps))
    with tempfile.TemporaryDirectory() as storage, cluster(8):
        run = on_ray.train(config, storage, run="bench")
        version = on_ray.encode(storage, run.name, num_shards=2).version
        on_ray.calibrate(storage, version=version)
        on_ray.publish(storage, version)
        with served(ServeArgs(storage=storage, allow_anonymous=True), port=PORT, leave_serve=True) as url:
            return asked(url, arguments.requests)


def asked(url: str, num_requests: int) -> dict[str, dict[str, float]]:
    """Summaries of the seconds of each cut-off's requests, with the mean length of its lists and the items scored."""
    queries = [{"text": text} for text in (SHOWCASE * 3)[:B]]
    seconds: dict[str, list[float]] = {name: [] for name in CUTOFFS}
    facts: dict[str, dict[str, float]] = {}
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        for turn in range(-2, num_requests // TURN):  # the first ones connect, load and make tables
            for name, cutoff in CUTOFFS.items():
                body = {"queries": queries, "k": K, "cutoff": cutoff}
                for _ in range(TURN):
                    started = time.perf_counter()
                    answer = client.post("/v1/search", json=body).raise_for_status()
                    if turn >= 0:
                        seconds[name].append(time.perf_counter() - started)
                results = answer.json()["results"]
                facts[name] = {
                    "kept": statistics.mean(result["num_kept"] for result in results),
                    "scored": statistics.mean(result["num_scored"] for result in results),
                }
    return {name: summary(own) | facts[name] for name, own in seconds.items()}


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
