"""Does the whole system run on a GPU: Ray Train, Ray Data, Ray Serve and FAISS, and how fast beside the CPU?

One command for a machine that has one GPU, no network, and what rails-ray depends on. Sections, each in a process and
with clusters of its own, so that one that fails or hangs ends alone:

    train   a Mixture of Logits with cross-device negatives, by a plain task (as the product places one worker) and by
            Ray Train; SOLAR's chunks, a quarter of a GPU each; the same on the CPU
    encode  150,000 texts by Ray Data, an actor on the GPU, and four with a quarter of it each; published; the items
            beside the CPU's
    serve   router and 2 shards in profile production, 2 replicas of each, all on one GPU; answers beside those of
            `rails_ray.local` on the CPU, cut-offs included; another version and back; the GPU's memory beside what the
            manifest says; latency and requests a second beside CPU replicas
    large   674,044 items of 8 x 8 components of width 32, one replica; queries a second beside a CPU replica
    faiss   a flat index of 1,000,000 x 128

    python -m jobs.benches.gpu_system [--only train serve] [--out FOLDER_OR_FILE] [--limit-s 460]
    python -m jobs.benches.gpu_system --device cpu --small      # the same code; Ray counts a GPU that is the CPU

On a lent machine: `COMMIT=... python3 -m jobs.benches.gpu_system --out $OUT`, the packages on PYTHONPATH. All sections
together end within eight minutes, those that are not done as failures; by the rows of an H100 with 16 cores, which
were of shorter and longer cases, they take some 458 s.

A yes: no row has `failed`. Its speeds are of one run each, and say whether the GPU is used, not how fast it could be.

Two workers of a group cannot share a GPU, which NCCL refuses, so that no gradient is exchanged on a GPU here. Steps a
second of a short run have the start of CUDA in them.

Exits with 1 if anything failed: each failure is a row with `failed`, and all else still runs.
"""

import argparse
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from jobs.benches.gpu import Rows, described
from jobs.benches.gpu_measuring import Case, clocks
from jobs.benches.gpu_system_setting import PRETENDED, System
from jobs.benches.record import RESULTS
from rails_ray.on_ray.environment import PRODUCTION_ENVIRONMENT

ROOT = Path(__file__).parents[2]
LIMIT_S = 460.0  # of all sections together: with GRACE_S all ends within eight minutes
GRACE_S = 20.0  # for a process that is to end, whose cluster must end too
LOOK_S = 1.0


@dataclass(frozen=True)
class Section:
    """
    place: its cases, as MODULE:NAME, imported in a process of its own, as Ray reads variables when it is imported.
    limit_s: its longest time.
    environment: variables of that process, and so of its clusters.
    """

    place: str
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)


SECTIONS = {
    "train": Section("jobs.benches.gpu_system_training:train_cases", 300),
    "encode": Section("jobs.benches.gpu_system_training:encode_cases", 120),
    "serve": Section("jobs.benches.gpu_system_serving:serve_cases", 180, PRODUCTION_ENVIRONMENT),
    "large": Section("jobs.benches.gpu_system_serving:large_cases", 150),
    "faiss": Section("jobs.benches.gpu_system_faiss:cases", 60),
}
REHEARSAL = 4  # times as long may a section take on a machine without a GPU
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_LOG_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}


def main(words: Sequence[str] | None = None) -> int:
    """The exit code."""
    arguments = parsed(words)
    device, began = torch.device(arguments.device), time.monotonic()
    rows = Rows(arguments.out / "gpu_system.jsonl" if arguments.out.is_dir() else arguments.out)
    rows.row(kind="environment", **described(device, arguments.small))
    is_right = True
    with tempfile.TemporaryDirectory(prefix="rails-ray-gpu-") as folder:
        system = System(arguments.device, arguments.small, folder)
        for name in arguments.only:
            started = time.monotonic()
            limit_s = SECTIONS[name].limit_s * (1 if device.type == "cuda" else REHEARSAL)
            limit_s = min(limit_s, arguments.limit_s - (started - began))
            for row in rows_of(SECTIONS[name], system, limit_s):
                is_right &= "failed" not in row
                rows.row(section=name, at_s=round(time.monotonic() - began, 1), **row)
            rows.row(section=name, seconds=time.monotonic() - started, **clocks())
    return 0 if is_right else 1


def rows_of(section: Section, system: System, limit_s: float) -> Iterator[dict[str, Any]]:
    """The rows of a section as its process measures them; its end without a word, or too late, is a row as well."""
    ends = time.monotonic() + limit_s
    apart = multiprocessing.get_context("spawn")
    measured = apart.Queue()
    process = apart.Process(target=carry_out, args=(section.place, system, measured))
    with patch.dict(os.environ, variables(section, system)):
        process.start()
    patience_s = 0.0  # for a process that is not done
    try:
        while True:
            was_alive = process.is_alive()
            try:
                row = measured.get(timeout=LOOK_S)
            except queue.Empty:
                if not was_alive:
                    yield {"failed": f"a section must end by itself, got exit code {process.exitcode}"}
                    return
                if time.monotonic() > ends:
                    yield {"failed": f"a section must end within {limit_s:.0f} s"}
                    return
                continue
            if row is None:
                patience_s = GRACE_S
                return
            yield row
    finally:
        end(process, patience_s)


def variables(section: Section, system: System) -> dict[str, str]:
    """The variables of a section's process. Ray's processes import what is here, installed or not."""
    folders = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    pretended = {} if system.has_gpu else {"RAY_OVERRIDE_RESOURCES": PRETENDED}
    return {**ENVIRONMENT, **section.environment, **pretended, "PYTHONPATH": os.pathsep.join(folders)}


def end(process: BaseProcess, patience_s: float) -> None:
    """Wait for a process to end, or interrupt it, so that it stops its cluster."""
    process.join(patience_s)
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGINT)
        process.join(GRACE_S)
    if process.is_alive():
        process.kill()
        process.join()


def carry_out(place: str, system: System, measured: "multiprocessing.Queue[dict[str, Any] | None]") -> None:
    """Measure a section's cases in this process; None says that there are no more."""
    began = time.monotonic()
    try:
        module, name = place.split(":")
        cases: Callable[[System], Iterator[Case]] = getattr(import_module(module), name)
        for labels, measure in cases(system):
            print(f"    {time.monotonic() - began:5.1f} s: {labels}", flush=True)
            case_began = time.monotonic()
            try:
                row = measure()
            except Exception as error:  # whatever it is, the machine is lent for minutes and the others count
                row = {"failed": reason_of(error)}
            measured.put({**labels, **row, "took_s": round(time.monotonic() - case_began, 2)})
    except Exception as error:
        measured.put({"failed": reason_of(error)})
    measured.put(None)


def reason_of(error: Exception) -> str:
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"[:2000]


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.benches.gpu_system",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), help="sections")
    add("--small", action="store_true", help="sizes for a test")
    add("--limit-s", type=float, default=LIMIT_S, help="seconds of all sections together")
    add("--out", type=Path, default=RESULTS / "gpu_system.jsonl", help="a file, or a folder for gpu_system.jsonl")
    arguments = parser.parse_args(words)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device must be cpu where torch sees no GPU, got cuda")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
