"""Jobs: what does it cost to submit one, and how long is the pipeline as a job beside the quickstart?

The cluster runs already, as others would have started it (its token in RAY_AUTH_TOKEN, if it has one):

    ray start --head --num-cpus 4
    python -m jobs.benches.submitting [--address http://127.0.0.1:8265] [--trivial 5]

A yes is less than 15 s from submission to result for a job that does nothing, and a pipeline (a Mixture of Logits on
the emoji: train, encode, evaluate, publish) within 1.5 times of the quickstart, which trains two models and serves.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import tyro

from jobs.benches.record import Record
from rails_ray.on_ray.submitting import DEFAULT_ADDRESS, submit


@dataclass(frozen=True)
class Arguments:
    address: str = DEFAULT_ADDRESS
    trivial: int = 5
    """Jobs that do nothing."""


def main(arguments: Arguments) -> None:
    record = Record("submitting")
    seconds = [_submitted(arguments.address, ["python", "-c", "pass"])[0] for _ in range(arguments.trivial)]
    with_folder = [_submitted(arguments.address, ["python", "-c", "pass"], ".")[0] for _ in range(arguments.trivial)]
    for name, times in (("trivial", seconds), ("trivial with working_dir", with_folder)):
        record.row(what=name, seconds=times, median_s=statistics.median(times), slowest_s=max(times))
        print(f"{name}: median {statistics.median(times):.1f} s, slowest {max(times):.1f} s")
    with tempfile.TemporaryDirectory() as storage:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "rails_ray.cli", "quickstart", "--storage", f"{storage}/q"], check=True)
        quickstart_s = time.perf_counter() - started
        entrypoint = ["python", "-m", "jobs.pipeline", "emoji-mol", "--run", "bench", "--storage", f"{storage}/p"]
        pipeline_s, log = _submitted(arguments.address, entrypoint, ".")
    told = json.loads(log.splitlines()[-1])
    record.row(
        what="pipeline",
        pipeline_s=pipeline_s,
        quickstart_s=quickstart_s,
        ratio=pipeline_s / quickstart_s,
        hit_rate=told["hit_rate"],
    )
    print(f"pipeline {pipeline_s:.0f} s, quickstart {quickstart_s:.0f} s, ratio {pipeline_s / quickstart_s:.2f}")


def _submitted(address: str, entrypoint: list[str], working_dir: str | None = None) -> tuple[float, str]:
    """Seconds from submission to the exit code, and the log."""
    log: list[str] = []
    started = time.perf_counter()
    code = submit(entrypoint, address=address, working_dir=working_dir, on_log=log.append)
    seconds = time.perf_counter() - started
    assert code == 0, "".join(log)
    return seconds, "".join(log)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
