"""A million short texts, from a folder to a server: when can it answer, and what does each of its processes hold?

The commands of a user, as processes: `train` (one step of text-mol, on the first thousand texts), `encode` all into two
shards, `publish`, `serve`; then the same with the thousand alone, to see what Ray, its Serve and imports take by
themselves. What is measured is the time from the start of `serve` to its line "serving at", and the resident memory of
each process of Ray once all shards have answered, beside the stored bytes of a shard.

    python -m jobs.benches.opening [--num-items 1000000] [--baseline WORKTREE]

`--baseline` is a checkout of an earlier commit (`git worktree add /tmp/before 76bf602`), which does the same with the
same texts, first. A yes is a server that is ready in a quarter of the baseline's time, and a shard's process of at most
1.5 times its stored bytes and 300 MB.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import tyro
from rich.console import Console

from jobs.benches.record import Record

ROOT = Path(__file__).parents[2]
WORDS = np.array(["red", "green", "blue", "white", "black", "grey", "pink", "gold", "plum", "lime"])
NUM_QUERIES, FEW, SAMPLE_S, MB = 300, 1000, 0.25, 2**20


@dataclass(frozen=True)
class Arguments:
    """
    Args:
        baseline: a checkout of an earlier commit; none to leave it out.
        repeats: servers that are started, one after the other; the first is cold.
    """

    num_items: int = 1_000_000
    baseline: Path | None = None
    repeats: int = 2


def main(arguments: Arguments) -> None:
    record, console = Record("opening"), Console()
    with tempfile.TemporaryDirectory(prefix="rails-ray-opening-") as folder:
        write(Path(folder) / "few", FEW)
        write(Path(folder) / "all", arguments.num_items)
        for checkout in [*([arguments.baseline] if arguments.baseline else []), ROOT]:
            for items, num_items in (("all", arguments.num_items), ("few", FEW)):
                for row in measured(checkout, Path(folder), items, arguments.repeats):
                    row = {"commit": commit_of(checkout), "num_items": num_items, **row}
                    record.row(**row)
                    console.print(row)


def write(folder: Path, num_items: int) -> None:
    """Items with short texts, and a few queries that name them."""
    folder.mkdir()
    rows = np.arange(num_items)
    texts = [f"{WORDS[row % 10]} {WORDS[row // 10 % 10]} thing {row}" for row in rows.tolist()]
    asked = np.arange(NUM_QUERIES)
    splits = np.array(["train", "valid", "test"])[asked % 3]
    tables = {
        "items": {"item_id": rows, "text": texts},
        "queries": {"query_id": asked, "text": texts[:NUM_QUERIES], "split": splits},
        "relevance": {"query_id": asked, "item_id": asked},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")


def commit_of(checkout: Path) -> str:
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=checkout, capture_output=True, text=True)
    return told.stdout.strip()


def measured(checkout: Path, folder: Path, items: str, repeats: int) -> Iterator[dict[str, Any]]:
    """Rows of one checkout and one corpus: each command, then each server."""
    storage = folder / f"storage-{commit_of(checkout)}-{items}"
    stages = {
        "train": ["text-mol", "--data.folder", str(folder / "few"), "--run", "r", "--training.num-steps", "1"],
        "encode": ["--run", "r", "--version", "v", "--folder", str(folder / items)],
        "publish": ["--version", "v"],
    }
    for name, words in stages.items():
        with command(checkout, storage, name, *words) as process:
            seen, started = dict[str, int](), time.perf_counter()
            while process.poll() is None:
                keep_largest(seen, process)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(SAMPLE_S)
        if process.returncode:
            raise RuntimeError(f"{name} must end well in {checkout}, got exit code {process.returncode}")
        yield {"stage": name, "seconds": round(time.perf_counter() - started, 1), "processes_mb": seen}
    sizes: list[int] = [0, 0]
    for part in json.loads((storage / "versions/v/manifest.json").read_text())["parts"]:
        sizes[part["shard"]] += part["size_bytes"]
    for repeat in range(repeats):
        yield {"stage": "serve", "repeat": repeat, "stored_mb": max(sizes) // MB, **served(checkout, storage)}


def served(checkout: Path, storage: Path) -> dict[str, Any]:
    """Seconds until the server is ready, and what its processes hold once they have answered."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.perf_counter()
    with command(checkout, storage, "serve", "--allow-anonymous", "--port", str(port)) as process:
        assert process.stdout is not None
        while "serving at" not in (line := process.stdout.readline()):
            if not line:
                raise RuntimeError(f"serve must be ready in {checkout}, got its end")
        seconds = time.perf_counter() - started
        try:
            for _ in range(5):
                query = {"queries": [{"text": "red thing 17"}], "k": 10}
                httpx.post(f"http://127.0.0.1:{port}/v1/search", json=query, timeout=60).raise_for_status()
            seen = dict[str, int]()
            keep_largest(seen, process)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    return {"ready_s": round(seconds, 1), "processes_mb": seen}


@contextmanager
def command(checkout: Path, storage: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command of `rails-ray` as this checkout has it, with a cluster of its own."""
    code = "import sys; from rails_ray.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(checkout), "RAY_DATA_LOG_LEVEL": "ERROR"}
    with subprocess.Popen(
        [sys.executable, "-c", code, *words, "--storage", str(storage)],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE if words[0] == "serve" else subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process


def keep_largest(seen: dict[str, int], process: "subprocess.Popen[str]") -> None:
    """The resident MB of the driver and of the processes of Ray that it has started, the largest of each name."""
    own = psutil.Process(process.pid)
    try:
        found = [("driver", own), *((each.name(), each) for each in own.children(recursive=True))]
    except psutil.Error:
        return
    for name, each in found:
        if name == "driver" or name.startswith("ray::"):
            try:
                seen[name] = max(seen.get(name, 0), each.memory_info().rss // MB)
            except psutil.Error:
                continue


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
