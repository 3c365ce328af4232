"""What does a GPU do with this repository: is it right there, how fast, and how far from what the hardware allows?

One command for a machine that has a GPU, torch (with numpy, scipy and jaxtyping) and nothing else. Sections:

    tests   what a GPU computes is what the CPU computes: gradients, scans, look-ups; the repository's own tests that
            need a GPU, where pytest is installed
    scan    searches at the shapes of `table5`, B = 32 and 1, k = 100: latency, memory, recall against brute force,
            share of the hardware's limit, and how often the host waits for the GPU
    step    training steps, in float32, TF32 and bfloat16, of mixtures also by one kernel, with compiled blocks too:
            steps a second, share of the limit of matrix products, waits of the host, memory

    python -m jobs.benches.gpu [--only scan step] [--shapes books] [--batches 32 1] [--out FOLDER_OR_FILE]
    python -m jobs.benches.gpu --device cpu --small      # the same code in seconds; its times say nothing

On a lent machine: `COMMIT=... python3 -m jobs.benches.gpu --out $OUT` (there is no history of commits there).

Held fixed: seeds, synthetic data made on the spot, k = 100, one process, one GPU. Each number is a median of 5 to 30
runs after one that is not timed, and shares are of limits measured in the same execution (`gpu_measuring`). Workers of
cross-device sampling are one, so that `gathered` and `streamed` show what their arithmetic costs and no communication.
`on_gpu` is the fused scan, `brute_force` the one that a CPU has, `naive` the equation as it is written, and `filtered`
a search of a share of the items in three ways.

A yes: every check passes; the fused scan reaches 30% of its limit at B = 32 on Books and waits once; a step reaches 30%
of the limit of bfloat16 products and waits only where its batch is moved and its loss looked at. A no names the lines
to rewrite, under `waits_at`.

Exits with 1 if anything failed: each failure is a row with `failed`, and all else still runs.
"""

import argparse
import json
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from jobs.benches import gpu_checks, gpu_scan, gpu_step
from jobs.benches.gpu_measuring import Bench, Case, clocks, device_facts, measured_limits
from jobs.benches.record import RESULTS, environment

SECTIONS: dict[str, Callable[[Bench], Iterator[Case]]] = {
    "tests": gpu_checks.cases,
    "scan": gpu_scan.cases,
    "step": gpu_step.cases,
}


class Rows:
    """Rows as `record.Record` writes them, in a file of one's own, and as lines for who watches."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.execution = uuid.uuid4().hex[:8]

    def row(self, **values: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"execution": self.execution, **values}) + "\n")
        print("  ".join(f"{name}={_shown(value)}" for name, value in values.items()), flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """The exit code."""
    arguments = parsed(words)
    device = torch.device(arguments.device)
    if arguments.small:
        torch.set_num_threads(1)  # threads that wait for each other on a busy machine take longer than one
    rows = Rows(arguments.out / "gpu.jsonl" if arguments.out.is_dir() else arguments.out)
    rows.row(kind="environment", **described(device, arguments.small))
    limits = measured_limits(device, arguments.small)
    rows.row(kind="limits", bytes_per_s=limits.bytes_per_s, **limits.flops_per_s, **clocks())
    bench = Bench(device, arguments.small, limits, tuple(arguments.shapes), tuple(arguments.batches))
    is_right = True
    for section in arguments.only:
        started = time.perf_counter()
        for row in rows_of(SECTIONS[section], bench):
            is_right &= "failed" not in row
            rows.row(section=section, **row)
        rows.row(section=section, seconds=time.perf_counter() - started, **clocks())
    return 0 if is_right else 1


def rows_of(section: Callable[[Bench], Iterator[Case]], bench: Bench) -> Iterator[dict[str, Any]]:
    """A row per case; where one fails, its reason, and the others go on."""
    try:
        for labels, measure in section(bench):
            try:
                row = measure()
            except Exception as error:  # whatever it is, the machine is lent for minutes and the others count
                row = {"failed": _reason(error)}
            yield {**labels, **row}
    except Exception as error:
        yield {"failed": _reason(error)}


def _reason(error: Exception) -> str:
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"[:2000]


def described(device: torch.device, is_small: bool) -> dict[str, Any]:
    told = environment()
    for name in ("torch", "triton", "numpy"):
        try:
            told[name] = version(name)
        except PackageNotFoundError:
            told[name] = None
    return told | {"is_small": is_small} | device_facts(device)


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.benches.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), help="sections")
    add("--shapes", nargs="+", choices=list(gpu_scan.SHAPES), default=list(gpu_scan.SHAPES), help="of the scans")
    add("--batches", nargs="+", type=int, default=[32, 1], help="queries searched at once")
    add("--small", action="store_true", help="sizes for a test, each thing timed once")
    add("--out", type=Path, default=RESULTS / "gpu.jsonl", help="a file, or a folder for gpu.jsonl")
    arguments = parser.parse_args(words)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device must be cpu where torch sees no GPU, got cuda")
    return arguments


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
