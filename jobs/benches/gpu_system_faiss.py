"""Section `faiss` of `gpu_system`: a flat index of FAISS on a GPU beside the same on the CPU."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import faiss
import numpy as np

from jobs.benches.gpu_measuring import Case
from jobs.benches.gpu_system_setting import System

WIDTH, BATCH, K, REPEATS = 128, 32, 100, 5
LEAST_EQUAL = 0.999  # share of equal ids: scores that differ by rounding may change places


def cases(system: System) -> Iterator[Case]:
    if faiss.get_num_gpus():
        yield Case({"case": "flat index"}, partial(flat, system.sized(1_000_000, 20_000)))
    else:
        note = "FAISS has no GPU here" if system.has_gpu else "no GPU was asked for"
        row: dict[str, Any] = {"gpus": 0, "version": faiss.__version__, "note": note}
        yield Case({"case": "flat index"}, lambda: row | ({"failed": note} if system.has_gpu else {}))


def flat(num_items: int) -> dict[str, Any]:
    """Milliseconds of a batch on both, and how many ids are equal."""
    generator = np.random.default_rng(0)
    items, queries = (generator.standard_normal((num, WIDTH), dtype=np.float32) for num in (num_items, BATCH))
    on_cpu = faiss.IndexFlatIP(WIDTH)
    on_cpu.add(items)
    resources = faiss.StandardGpuResources()
    on_gpu = faiss.index_cpu_to_gpu(resources, 0, on_cpu)
    rows, row = {}, dict[str, Any](items=num_items, gpus=faiss.get_num_gpus(), version=faiss.__version__)
    for name, index in (("gpu", on_gpu), ("cpu", on_cpu)):
        took = list[float]()
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            _, rows[name] = index.search(queries, K)
            took.append(1000 * (time.perf_counter() - began))
        row[f"{name}_ms"] = sorted(took[1:])[REPEATS // 2]
    shares = [len(set(one) & set(other)) / K for one, other in zip(rows["gpu"], rows["cpu"], strict=True)]
    row["equal"] = float(np.mean(shares))
    if row["equal"] < LEAST_EQUAL:
        row["failed"] = f"at least {LEAST_EQUAL:g} of the ids must be equal, got {row['equal']:g}"
    return row
