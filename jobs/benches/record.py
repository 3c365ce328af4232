"""Raw rows of a bench, with the environment that they were measured in.

Where there is no history of commits, as on a lent machine, the environment variable COMMIT says what is measured.
"""

import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "numpy", "pyarrow", "ray", "s3fs", "moto")


class Record:
    """Appends rows to `results/<name>.jsonl`; the first one of each execution is its environment."""

    def __init__(self, name: str) -> None:
        RESULTS.mkdir(exist_ok=True)
        self.path = RESULTS / f"{name}.jsonl"
        self.execution = uuid.uuid4().hex[:8]
        self.row(kind="environment", **environment())

    def row(self, **values: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"execution": self.execution, **values}) + "\n")


def quiet(done: int, loss: float) -> None:
    """Progress of a training that is not recorded."""


def recorded(name: str) -> list[dict[str, Any]]:
    """All rows of a bench so far, environments among them: those that `pack` has compressed, then the others."""
    path = RESULTS / f"{name}.jsonl"
    packed, plain = path.with_suffix(".jsonl.gz"), path.read_text() if path.exists() else ""
    text = (gzip.decompress(packed.read_bytes()).decode() if packed.exists() else "") + plain
    return [json.loads(line) for line in text.splitlines()]


def pack() -> None:
    """Compress the rows of all benches: `python -m jobs.benches.record`."""
    for path in RESULTS.glob("*.jsonl"):
        packed = path.with_suffix(".jsonl.gz")
        before = gzip.decompress(packed.read_bytes()) if packed.exists() else b""
        packed.write_bytes(gzip.compress(before + path.read_bytes(), mtime=0))
        path.unlink()


def last_execution(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Environment and rows of the last execution of a bench."""
    rows = recorded(name)
    own = [row for row in rows if row["execution"] == rows[-1]["execution"]]
    return own[0], own[1:]


def last_rows(name: str, key: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The last environment, and for each value of `key` the rows of the last execution that measured it."""
    rows = recorded(name)
    latest = {row[key]: row["execution"] for row in rows if key in row}
    environments = [row for row in rows if row.get("kind") == "environment"]
    return environments[-1], [row for row in rows if key in row and latest[row[key]] == row["execution"]]


def environment() -> dict[str, Any]:
    """The command, when, on which commit, and on what."""
    module = Path(sys.argv[0])
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "command": " ".join(["python", "-m", f"jobs.benches.{module.stem}", *map(_shown, sys.argv[1:])]),
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        **_measured_code(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        **packages,
    }


def _measured_code() -> dict[str, Any]:
    commit = _output("git", "rev-parse", "--short", "HEAD")
    if not commit:
        return {"commit": os.environ.get("COMMIT", ""), "is_clean": None}
    return {"commit": commit, "is_clean": not _output("git", "status", "--porcelain", "--", "rails_ray")}


def _shown(argument: str) -> str:
    """An argument without the folders of this machine."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    pack()
