"""A version of vectors on one machine: what does it cost beside reading, normalising and writing them by hand?

Vectors in .npy become a data folder (`rails-ray index import`). Then, in turns: numpy and pyarrow read the folder,
normalise the vectors and write one Parquet file; `rails-ray encode` makes a version of it in its own process; and, with
`--ray`, two workers of a cluster that the command starts. Each way is a process of its own, whose imports (torch takes
most of them) count in `seconds` but not in `work_s`.

    python -m jobs.benches.encode_vectors [--num-items 116659] [--width 256] [--repetitions 3] [--ray]

A yes is at most three times the work by hand, less than 2 GB, and one digest of all parts.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
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


@dataclass(frozen=True, kw_only=True)
class Arguments:
    num_items: int = 116_659
    width: int = 256
    repetitions: int = 3
    ray: bool = False


def main(arguments: Arguments) -> None:
    record, out = Record("encode_vectors"), Console()
    with tempfile.TemporaryDirectory() as name:
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
        ]
        ways = {
            "by hand": ["-c", BY_HAND, f"{folder}/items", str(work / "by-hand.parquet")],
            "one process": ["-c", IN_PROCESS, *encode],
        } | ({"two workers of Ray": ["-c", IN_PROCESS, *encode, "--workers", "2"]} if arguments.ray else {})
        for repetition in range(arguments.repetitions):
            for way, words in ways.items():
                shutil.rmtree(storage, ignore_errors=True)
                row = {"way": way, "repetition": repetition, **measured(*words), "digest": digest_of(storage)}
                record.row(num_items=arguments.num_items, width=arguments.width, **row)
                out.print(row)


def measured(*words: str) -> dict[str, float]:
    """Seconds in all, seconds of the work that a process prints last, and its most memory."""
    began = time.perf_counter()
    running = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
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
    """A digest of a version's parts; nothing for none."""
    path = storage / "versions" / "v" / "encoded.json"
    if not path.exists():
        return ""
    parts = [part["sha256"] for part in json.loads(path.read_text())["parts"]]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main(tyro.cli(Arguments))
