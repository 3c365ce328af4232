"""A plan in sentences: what sets its numbers, what they rest on, and which commands follow."""

from collections.abc import Mapping
from dataclasses import replace

from rails_ray.cli.planning import measured
from rails_ray.cli.planning.machines import Cpu
from rails_ray.cli.planning.plans import Demand, Plan, PlannedCorpus, may_widen, one_process_busy, plan
from rails_ray.cli.planning.quantities import shown_bytes

STORED_AS = {"fp16": "float16", "bf16": "bfloat16"}  # `encode --dtype`, which is float32 if left out
INDEX_OF = {"average": "average", "ann": "average", "per_embedding": "components", "combined": "both"}  # by method


def num_units(corpus: PlannedCorpus, made: Plan) -> int:
    """GPUs, or CPU cores, of all replicas of all shards."""
    return made.num_machines * corpus.machine.num_units


def conclusion(corpus: PlannedCorpus, demand: Demand, made: Plan, by_batch: Mapping[int, Plan | None]) -> list[str]:
    """Say what sets the numbers of shards and replicas, and what would be cheaper.

    Args:
        by_batch: plans for other requests, by their number of queries.
    """
    by_memory, by_latency = made.num_shards_by_memory, made.num_shards_by_latency
    if made.num_shards == 1:
        shards = "One shard holds all items and keeps the latency"
    elif by_latency > by_memory:
        shards = f"The latency sets the {made.num_shards:,} shards, where memory asks for {by_memory:,}"
    else:
        shards = f"Memory sets the {made.num_shards:,} shards, where the latency asks for {by_latency:,}"
    setter = "The queries set" if made.num_replicas_by_load >= demand.availability else "Availability sets"
    total = f"{num_units(corpus, made):,} {corpus.machine.unit} in all"
    sentences = [
        f"{shards}; {made.bound_by} takes most of a search.",
        f"{setter} the {made.num_replicas:,} replicas of each shard: {total}{_cheaper(corpus, made, by_batch)}.",
    ]
    if corpus.machine.is_gpu and _is_met_without_gpu(corpus, demand, made):
        sentences.append(f"No GPU is needed: as many replicas of {measured.CORES} CPU cores each meet the demand.")
    return [*sentences, *_one_process(corpus, demand)]


def _one_process(corpus: PlannedCorpus, demand: Demand) -> list[str]:
    """Say it if one process will do, without a cluster."""
    own = replace(corpus, machine=Cpu()) if corpus.machine.is_gpu else corpus
    busy = one_process_busy(own, demand)
    if busy is None:
        return []
    memory = f"{shown_bytes(own.replica_bytes(own.num_items))} of {shown_bytes(own.machine.memory_bytes)}"
    return [
        f"One process will do, without a cluster, if nobody needs answers while it restarts: on {measured.CORES} CPU "
        f"cores it holds all items in {memory}, and {demand.qps:,g} queries a second keep it {busy:.0%} busy. After "
        "`encode --shards 1`, `rails-ray serve --single --keys-file keys` serves it, and in Python `local.open` "
        "searches it."
    ]


def _cheaper(corpus: PlannedCorpus, made: Plan, by_batch: Mapping[int, Plan | None]) -> str:
    """Say what larger requests would take, if that is less."""
    larger = {size: other for size, other in by_batch.items() if other is not None and size > corpus.search.batch}
    if not larger:
        return ""
    size, best = min(larger.items(), key=lambda one: one[1].num_machines)
    if best.num_machines >= made.num_machines:
        return ""
    return f"; requests of {size} queries would take {num_units(corpus, best):,}"


def _is_met_without_gpu(corpus: PlannedCorpus, demand: Demand, made: Plan) -> bool:
    """Return whether pairs of CPU cores, as many as GPUs at most, meet the demand too."""
    try:
        return plan(replace(corpus, machine=Cpu()), demand).num_machines <= made.num_machines
    except ValueError:
        return False


def notes(corpus: PlannedCorpus, made: Plan) -> list[str]:
    """Say what the numbers rest on, and what to watch."""
    found = []
    if corpus.rows_of_gpu is not None:
        one, many = corpus.rows_of_gpu
        found.append(
            f"times are of rows measured on one {measured.GPU_NAME} on {one.figure.date}, of {one.num_items:,} items "
            f"and requests of {one.search.batch} and {many.search.batch} queries. Times of other sizes were not "
            "measured: they are in proportion to the items, and linear in the queries of a request."
        )
    elif corpus.machine.is_gpu:
        found.append(
            "times are the GPU's peaks times the share of them that brute_force reached on an H100. Other GPUs were "
            "not measured; on the H100 other methods were slower, except average at 4 x 4 x 768 and 32 queries."
        )
    else:
        found.append(
            f"times are of {measured.CORES} cores, from measured rows. They lie within a factor of "
            f"{measured.WORST_FACTOR:g} of all rows that a test compares them with. Other cores were not measured."
        )
    if corpus.search.index != "flat":
        note = (
            f"what index {corpus.search.index} misses depends on the vectors: `rails-ray serve --shadow-fraction` "
            "measures it."
        )
        if not corpus.machine.is_gpu:
            note += " Its time is within a factor of two of that of 32 queries in 148,730 and in a million items."
        found.append(note)
    if may_widen(corpus):
        found.append(
            "lists so short may hold fewer than k distinct items. The search then doubles them and starts again."
        )
    if corpus.shape.dtype == "int8":
        found.append("a version cannot store int8 yet: encode it in fp16 or bf16.")
    if corpus.machine.is_gpu or made.num_routers != made.num_replicas:
        found.append(f"in the config that the last command prints, give the Router {made.num_routers:,} replicas.")
    return found


def commands(corpus: PlannedCorpus, made: Plan) -> list[str]:
    """The commands that build and serve what was planned."""
    encode = f"rails-ray encode --run RUN --shards {made.num_shards}"
    if corpus.shape.dtype in STORED_AS:
        encode += f" --dtype {STORED_AS[corpus.shape.dtype]}"
    if corpus.search.index != "flat":
        encode += f" --index {corpus.search.index} --index-of {INDEX_OF[corpus.search.method]}"
    reserved = "--gpus 1" if corpus.machine.is_gpu else f"--cpus {measured.CORES} --shards-apart"
    serve = f"rails-ray serve --profile production --keys-file keys --replicas {made.num_replicas} {reserved}"
    return [encode, f"{serve} --print-config"]
