"""A version of vectors on one machine: what does it cost beside reading, normalising and writing them by hand?

Vectors in .npy become a data folder (`rails-ray index import`). Then, in turns: numpy and pyarrow read the folder,
normalise the vectors and write one Parquet file; `rails-ray encode` makes a version of it in its own process; and, with
`--ray`, two workers of a cluster that runs already, and of one that the command starts. Each way is a process of its
own, whose imports (torch takes most of them) count in `seconds` but not in `work_s`; those of workers count in both.

    python -m jobs.benches.encode_vectors [--num-items 116659] [--width 256] [--repetitions 3] [--ray] [--index hnsw]

A yes is at most three times the work by hand, less than 2 GB, at most 5 s more on a running cluster, and one digest of
all parts and indexes.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console

from jobs.benches.record import Record

BY_HAND = """
import sys, time
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
began = time.perf_counter()
read = pq.read_table(sys.argv[1]).combine_chunks()
rows = read["vector"].chunk(0).flatten().to_numpy().reshape(read.num_rows, -1)
rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
vectors = pa.FixedSizeListArray.from_arrays(rows.ravel(), rows.shape[1])
pq.write_table(pa.table({"item_id": read["item_id"], "vector": vectors}), sys.argv[2])
print(time.perf_counter() - began)
"""
IN_PROCESS = """
import sys, time
import rails_ray.families.in_process, rails_ray.families.running
from rails_ray.cli.main import main
began = time.perf_counter()
assert main(sys.argv[1:]) == 0
print(time.perf_counter() - began)
"""

RUNNING = "two workers of a running Ray"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    num_items: int = 116_659
    width: int = 256
    repetitions: int = 3
    ray: bool = False
    index: str | None = None


def main(arguments: Arguments) -> None:
    record, out = Record("encode_vectors"), Console()
    with tempfile.TemporaryDirectory() as name, running_cluster() if arguments.ray else nullcontext("") as address:
        work = Path(name)
        drawn = np.random.default_rng(0).standard_normal((arguments.num_items, arguments.width), dtype=np.float32)
        np.save(work / "vectors.npy", drawn)
        folder, storage = str(work / "data"), work / "storage"
        measured("-m", "rails_ray.cli", "index", "import", str(work / "vectors.npy"), "--folder", folder)
        encode = [
            "encode",
            "--recipe",
            "vector-cosine",
            "--folder",
            folder,
            "--version",
            "v",
            "--storage",
            str(storage),
            "--shards",
            "2",
        ] + (["--index", arguments.index] if arguments.index else [])
        ways = {
            "by hand": ["-c", BY_HAND, f"{folder}/items", str(work / "by-hand.parquet")],
            "one process": ["-c", IN_PROCESS, *encode],
        }
        if arguments.ray:
            ways |= {way: ["-c", IN_PROCESS, *encode, "--workers", "2"] for way in (RUNNING, "two workers of Ray")}
        for repetition in range(arguments.repetitions):
            for way, words in ways.items():
                shutil.rmtree(storage, ignore_errors=True)
                cost = measured(*words, RAY_ADDRESS=address if way == RUNNING else "")
                row = {"way": way, "repetition": repetition, **cost, "digest": digest_of(storage)}
                record.row(num_items=arguments.num_items, width=arguments.width, **row)
                out.print(row)


@contextmanager
def running_cluster() -> Iterator[str]:
    """The address of a cluster of four CPUs, whose processes were used by nobody."""
    import ray

    from rails_ray.on_ray.cluster import cluster

    with cluster(4):
        yield ray.get_runtime_context().gcs_address


def measured(*words: str, **environment: str) -> dict[str, float]:
    """Seconds in all, seconds of the work that a process prints last, and its most memory."""
    began = time.perf_counter()
    running = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, env=os.environ | environment
    )
    assert running.stdout is not None
    printed = running.stdout.read().split()
    _, status, used = os.wait4(running.pid, 0)
    assert status == 0
    is_number = bool(printed) and printed[-1].replace(".", "", 1).isdigit()
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "work_s": round(float(printed[-1]), 2) if is_number else 0.0,
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "most_mb": used.ru_maxrss / 1024,
    }


def digest_of(storage: Path) -> str:
    """A digest of a version's parts and indexes; nothing for none."""
    path = storage / "versions" / "v" / "encoded.json"
    if not path.exists():
        return ""
    encoded = json.loads(path.read_text())
    found = [entry["sha256"] for entry in [*encoded["parts"], *encoded["indexes"]]]
    return hashlib.sha256("".join(found).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main(tyro.cli(Arguments))
