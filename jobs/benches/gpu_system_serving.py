"""Sections `serve` and `large` of `gpu_system`: Ray Serve with replicas on a GPU, each beside replicas on the CPU."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import pyarrow as pa
import torch

from jobs.benches.chaos_clients import own_processes
from jobs.benches.gpu_measuring import Case
from jobs.benches.gpu_system_setting import System, num_on_gpu, used_mb
from jobs.benches.gpu_system_training import DATA
from jobs.benches.gpu_system_versions import FOLLOW_S, beside_plan, gpu_scans, planned_mb, swapped
from jobs.benches.http import PORT, ROLES
from jobs.benches.throughput import TEXTS, body_of, loaded
from rails_ray.data.queries import DenseRows
from rails_ray.families import calibrations
from rails_ray.families.building import QUERY
from rails_ray.families.calibrating import calibrated
from rails_ray.families.config import RunConfig, from_json, to_json
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.serve import DualEncoderFamily
from rails_ray.families.encoding import EncodeOptions, encode
from rails_ray.families.in_process import InProcess
from rails_ray.families.items import ByModel
from rails_ray.families.recipes.emoji import MIXTURE, emoji_mol
from rails_ray.families.recipes.vectors import vector_mol
from rails_ray.families.running import begin, write_piece
from rails_ray.families.version_queries import VersionQueries
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.vectors import VectorsConfig
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs
from rails_ray.serving import local
from rails_ray.storage import parts, runs, versions
from rails_ray.storage.described import WEIGHTS
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import CONFIG
from rails_ray.storage.parquet import item_part
from rails_ray.training.piece import Given, fit

MOST_OFF = 2e-3  # between scores of a GPU and of the CPU
REPLICAS, SHARDS = 2, 2
SHARE = 0.25
ASKED_TIMES, AT_ONCE = 3, 8
LOADS = ((1, 1), (8, 1), (32, 1))  # clients, queries of a request
LOAD_S, WARM_S = 3, 1
RUN = "served"
CUTOFFS: dict[str, dict[str, Any]] = {
    "top_k": {"k": 20, "cutoff": {"top_k": 20}},
    "top_k by two_pass": {"k": 20, "cutoff": {"top_k": 20}, "method": "two_pass"},
    "probability": {"cutoff": {"probability": 0.01}},
    "nucleus": {"cutoff": {"nucleus": 0.6}},
    "coverage, calibrated": {"cutoff": {"coverage": 0.9}},
    "mass, calibrated": {"cutoff": {"mass": 0.9}},
}
# Books, as `table5` has it; representations are as wide as those its components are made of.
NUM_ITEMS, WIDTH, K = 674_044, 64, 100
LARGE_QUERIES, LARGE_CHECKED = (1, 32), 8  # of a request

Results = Sequence[Mapping[str, Any]]
BodyOf = Callable[[int, int], dict[str, Any]]


@dataclass
class Kept:
    """Answers for a later case to be compared with."""

    answers: dict[str, Results]


def serve_cases(system: System) -> Iterator[Case]:
    """The emoji, after a short training, in two shards, two replicas of each and of the router; profile production."""
    storage, config = system.storage("serve"), replace(emoji_mol(), data=DATA)
    config = replace(config, training=replace(config.training, num_steps=system.sized(100, 20)))
    publish_here(storage, config)
    on_cpu = local.open(storage)
    expected = {name: [result.model_dump() for result in asked(on_cpu, body)] for name, body in CUTOFFS.items()}
    if system.has_gpu:
        yield Case({"case": "local.open on the GPU"}, partial(in_process, storage, expected))
    for place, is_gpu in system.places():
        size = DeploymentSize(replicas=REPLICAS, num_cpus=1, num_gpus=SHARE if is_gpu else 0)
        labels = {"on": place, "gpus": size.num_gpus}
        yield from up(system, storage, size, labels, partial(serve_questions, system, on_cpu, expected))


def publish_here(storage: str, config: RunConfig) -> None:
    """Train, encode, calibrate and publish in this process, on the CPU: a GPU that cannot train can still serve, and
    workers of a cluster take longer to start than all of it takes."""
    store = Storage(storage)
    begun = begin(config, store, RUN)
    read = read_data(from_json(begun.config), store)
    for piece in begun.pieces:
        fitted = fit(piece, Given(read=read, storage=store, run=RUN))
        assert fitted is not None
        write_piece(store, runs.piece_run(RUN, piece.name), fitted, begun.config)
    made = encode(InProcess(), storage, RUN, EncodeOptions(num_shards=SHARDS, use_gpu=False))
    found = VersionQueries.read(store, made.version, None, ["valid"])
    calibrations.write(store, made.version, calibrated(found, "valid").stored)
    versions.publish(store, made, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")


def serve_questions(
    system: System, on_cpu: local.LocalVersion, expected: Mapping[str, Results], url: str
) -> Iterator[Case]:
    for name, body in CUTOFFS.items():
        yield Case({"case": name}, partial(over_http, url, body, expected[name]))
    for name in ("top_k", "nucleus"):
        measure = partial(at_once, url, CUTOFFS[name], expected[name])
        yield Case({"case": f"{name}, {AT_ONCE} clients at once"}, measure)
    yield Case({"case": "explain"}, partial(explained, url, on_cpu, expected["top_k"][0]["items"][:3]))
    yield Case({"case": "swap, there and back"}, partial(swapped, url, system.storage("serve")))
    for clients, num_queries in LOADS:
        yield load_case(url, clients, num_queries)


def up(
    system: System, storage: str, size: DeploymentSize, labels: dict[str, Any], ask: Callable[[str], Iterator[Case]]
) -> Iterator[Case]:
    """The start of a server, and what is asked of it; only its failure if it does not start."""
    arguments = ServeArgs(storage=storage, allow_anonymous=True, timeout_s=25, follow_s=FOLLOW_S)
    before, began = used_mb(), time.perf_counter()
    try:
        # A cluster of its own: with HAProxy, Serve can take half a minute to stop on one that stays.
        with cluster(system.num_cpus), served(arguments, size, port=PORT, leave_serve=True) as url:
            start = partial(started, system, url, time.perf_counter() - began, before, planned_mb(storage, size))
            for case in (Case({"case": "start"}, start), *ask(url)):
                yield Case({**case.labels, **labels}, case.measure)
    except Exception as error:  # other places have servers of their own
        yield Case({"case": "start", **labels}, partial(raised, error))


def raised(error: Exception) -> dict[str, Any]:
    raise error


def queries() -> list[dict[str, Any]]:
    """Texts, of which one leaves out an item that it would find."""
    return [{"text": text} for text in TEXTS] + [{"text": "pizza", "exclude": ["🍕"]}]


def asked(version: local.LocalVersion, body: Mapping[str, Any]) -> Sequence[Any]:
    found: Sequence[Any] = version.search(queries(), **body).results
    return found


def in_process(storage: str, expected: Mapping[str, Results]) -> dict[str, Any]:
    """Search on the GPU without a server, and compare the answers."""
    opened = local.open(storage, device="cuda")
    found = {name: [own.model_dump() for own in asked(opened, body)] for name, body in CUTOFFS.items()}
    return worst(agreement(found[name], expected[name]) for name in CUTOFFS)


def started(system: System, url: str, seconds: float, before: float | None, planned: float | None) -> dict[str, Any]:
    """Report where the replicas are, and the memory that they take."""
    replicas = [process for role in ("router", "shards") for process in own_processes(ROLES[role])]
    now, on_gpu = used_mb(), num_on_gpu(replicas)
    row: dict[str, Any] = {"seconds": seconds, "processes": len(replicas), "processes_on_gpu": on_gpu}
    if before is not None and now is not None:
        row |= {"gpu_mb": now, "gpu_mb_above": now - before}
    row |= {"gpu_scans": gpu_scans(url)} | beside_plan(row.get("gpu_mb_above"), planned)
    is_on_gpu = planned is not None and system.has_gpu
    if is_on_gpu and not on_gpu and not row.get("gpu_mb_above", 0) > 100:
        row["failed"] = "replicas must use the GPU"
    elif is_on_gpu and row["gpu_scans"] != ["fused"]:
        row["failed"] = f"GPUs must scan by the fused kernel, got {row['gpu_scans']}"
    return row


def over_http(url: str, body: Mapping[str, Any], expected: Results) -> dict[str, Any]:
    """Ask several times: what comes again may be recorded, and be played back from then on."""
    return worst(ask_for(url, body, expected, slice(None)) for _ in range(ASKED_TIMES))


def at_once(url: str, body: Mapping[str, Any], expected: Results) -> dict[str, Any]:
    """Clients that ask at the same time for the same queries, in batches of all sizes."""
    some = [slice(number % len(expected), None) for number in range(AT_ONCE * ASKED_TIMES * 3)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return worst(pool.map(partial(ask_for, url, body, expected), some))


def ask_for(url: str, body: Mapping[str, Any], expected: Results, some: slice) -> dict[str, Any]:
    found = post(f"{url}/v1/search", {"queries": queries()[some], **body})["results"]
    return agreement(found, expected[some])


def worst(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return max(rows, key=lambda row: ("failed" in row, row["off"]))


def post(url: str, body: Mapping[str, Any]) -> Any:
    answer = httpx.post(url, json=body, timeout=60, trust_env=False)
    if answer.status_code != 200:
        raise RuntimeError(f"{url} must answer, got {answer.status_code}: {answer.text[:500]}")
    return answer.json()


def agreement(found: Results, expected: Results) -> dict[str, Any]:
    """How far scores are from the expected ones. Items must be the same, but for those whose score is as near to the
    end of the other list as scores may be to each other."""
    off, num_items, strange = 0.0, 0, list[Any]()
    for one, other in zip(found, expected, strict=True):
        scores, wanted = (dict(zip(own["items"], own["scores"], strict=True)) for own in (one, other))
        num_items += len(scores)
        off = max([off, *(abs(scores[item] - wanted[item]) for item in scores.keys() & wanted.keys())])
        for own, another, rest in ((scores, wanted, other), (wanted, scores, one)):
            ends = [*([] if rest["threshold"] is None else [rest["threshold"]]), *list(another.values())[-1:]]
            missing = own.keys() - another.keys()
            strange += [item for item in missing if min((abs(own[item] - end) for end in ends), default=1.0) > MOST_OFF]
    row: dict[str, Any] = {"off": off, "items": num_items}
    if off > MOST_OFF or strange:
        row["failed"] = f"answers must agree to {MOST_OFF:g}, got {off:g}, and {len(strange)} items of one side alone"
    return row


def explained(url: str, version: local.LocalVersion, items: Sequence[str]) -> dict[str, Any]:
    """The largest difference between component cosines."""
    query = {"text": TEXTS[0]}
    found = post(f"{url}/v1/explain", {"query": query, "items": list(items)})["items"]
    expected = [own.model_dump() for own in version.explain(query, items).items]
    pairs = zip(found, expected, strict=True)
    off = max(float((torch.tensor(a["cosines"]) - torch.tensor(b["cosines"])).abs().max()) for a, b in pairs)
    return {"off": off} | ({"failed": f"cosines must agree to {MOST_OFF:g}, got {off:g}"} if off > MOST_OFF else {})


def load_case(url: str, clients: int, queries: int, body_of: BodyOf = body_of) -> Case:
    """Clients that ask, wait for the answer and ask again."""

    def measure() -> dict[str, Any]:
        asyncio.run(loaded(url, clients, queries, WARM_S, body_of))
        row = asyncio.run(loaded(url, clients, queries, LOAD_S, body_of))
        row["requests_per_s"] = row["queries_per_s"] / queries
        return row | ({"failed": f"no request must be refused, got {row['refused']}"} if row["refused"] else {})

    return Case({"case": "load", "clients": clients, "queries": queries}, measure)


def large_cases(system: System) -> Iterator[Case]:
    """A corpus of the size of Books, served whole by one replica."""
    storage, num_items = system.storage("large"), system.sized(NUM_ITEMS, 2_000)
    yield Case({"case": "make", "items": num_items}, partial(made, storage, num_items, system.device, system.cores))
    kept = Kept({})
    for place, is_gpu in system.places():
        # A replica on the CPU has as many threads as it reserves.
        size = DeploymentSize(num_cpus=1 if is_gpu else max(system.cores - 2, 1), num_gpus=0.5 if is_gpu else 0)
        labels = {"on": place, "items": num_items, "cpus": size.num_cpus}
        yield from up(system, storage, size, labels, partial(large_questions, system, kept, is_gpu))


def large_questions(system: System, kept: Kept, is_gpu: bool, url: str) -> Iterator[Case]:
    yield Case({"case": f"top_k {K}"}, partial(large_answers, url, kept))
    for clients in (1, 8) if is_gpu else (1,):
        for num_queries in LARGE_QUERIES:
            yield load_case(url, clients, num_queries, large_body)


def made(storage: str, num_items: int, device: str, cores: int) -> dict[str, Any]:
    """Store items made of random vectors by an untrained mixture, a part at a time, and publish them."""
    began, store = time.perf_counter(), Storage(storage)
    config = large_mixture()
    model = DualEncoderFamily.of(config).model().eval()
    weights = weight_files.to_bytes(model)
    encode = ByModel(model.to(device))
    parts.begin(store, "v1", {"run": "none", "items": f"{num_items} random"})
    planned = parts.plan([num_items], parts.PART_ITEMS)

    def write(part: parts.PlannedPart) -> None:
        generator = torch.Generator().manual_seed(part.first_row)
        rows = torch.randn(part.num_items, WIDTH, generator=generator).numpy()
        ids = pa.array(range(part.first_row, part.first_row + part.num_items))
        state = encode(ids.to_pylist(), DenseRows(rows))
        parts.write_part(store, "v1", part, item_part(pa.table({"item_id": ids}), state))

    with ThreadPoolExecutor(max(min(8, cores), 1)) as pool:
        list(pool.map(write, planned))
    files = {CONFIG: to_json(config), WEIGHTS: weights}
    encoded = parts.finish(store, "v1", planned, run="none", query=QUERY, files=files.items(), cutoff_mass=None)
    versions.publish(store, encoded, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    return {"seconds": time.perf_counter() - began, "mb": sum(part.size_bytes for part in encoded.parts) / 1e6}


def large_mixture() -> RunConfig:
    """8 x 8 components of width 32, from vectors."""
    return replace(vector_mol(), name="large").with_family(
        encoder=VectorsConfig(query_width=WIDTH, item_shape=(1, WIDTH)),
        components=ComponentsConfig(width=32, query_hidden=0, gate_hidden=64),
        similarity=replace(MIXTURE, num_query_components=8, num_item_components=8),
    )


def large_body(number: int, queries: int) -> dict[str, Any]:
    vectors = torch.randn(queries, WIDTH, generator=torch.Generator().manual_seed(number))
    return {"queries": [{"embedding": vector} for vector in vectors.tolist()], "k": K, "cutoff": {"top_k": K}}


def large_answers(url: str, kept: Kept) -> dict[str, Any]:
    """The first place's answers are kept, and another's compared with them, as are those to the same question again."""
    took, rows = list[float](), list[dict[str, Any]]()
    for _ in range(ASKED_TIMES):
        began = time.perf_counter()
        found = post(f"{url}/v1/search", large_body(0, LARGE_CHECKED))["results"]
        took.append(time.perf_counter() - began)
        rows.append(agreement(found, kept.answers.setdefault("all", found)))
    return {"first_s": took[0], "last_s": took[-1], "scored": found[0]["num_scored"], **worst(rows)}
