"""Peers: what do vectors cost from disk to the first answer, at rest and under load, beside what one would use instead?

Vectors of length 1 (WordNet's glosses by wordllama, 256 numbers; beyond 116,659 of them copies with noise; drawn ones
where the data or wordllama is missing), their 10 best by inner product, exactly (`exact`) and by a graph of M = 32 and
ef_construction = 80 (`hnsw`), searched with the smallest ef_search of a ladder that finds 0.99 of them. 1,000 other
glosses are the queries. In turns, each in processes of its own:

- in process: FAISS (`faiss`), rails-ray (`local`), `usearch`, `lancedb`, `milvus-lite`;
- servers: FastAPI and FAISS (`by-hand`), `rails-ray serve` in one process (`single`), `chroma`, `pgvector`.

Of each: seconds of a process that reads .npy and builds, and of another that opens what was built, to its first answer;
p50 and p99 of one query after the other; memory after these; queries a second of 8 and 32 clients with a query a
request, and of one with 32. The clients are one process, whose share of a core is in the rows. In process, in place of
clients: milliseconds of CPU and of wall of a query and of 32.

    pip install 'rails-ray[bench]'
    pip install --no-deps milvus-lite    # alone, as it would put faiss-cpu over the FAISS of rails-ray
    python -m jobs.benches.peers [--num-items 10000 116659] [--repetitions 3] [--peers faiss,local] [--kinds hnsw]

A yes is, at recall .99: in process at most FAISS + 0.3 ms for a query by the graph, and 1.2 times it for 32; `single`
at most 1.2 times the p50 of `by-hand` and at least 0.9 times its queries a second; and from .npy to the first answer at
most twice FAISS.
"""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from jobs.benches.peers_in_process import IN_PROCESS, InProcess
from jobs.benches.peers_processes import child, last_line, running, wait, without_folders
from jobs.benches.peers_served import served
from jobs.benches.peers_servers import SERVERS, Server
from jobs.benches.peers_setting import K, Kind, Setting, prepare
from jobs.benches.record import Record

PEERS: dict[str, InProcess | Server] = IN_PROCESS | SERVERS


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """
    Args:
        data: folder with the data sets.
        num_items: numbers of vectors, one after the other.
        peers: names with commas between them; by default all that are installed.
        seconds: of each load.
        most_s: most seconds of searches one by one; 1,000 of them if they take less.
        work: folder for what is written, and removed; by default the system's for such files.
    """

    data: Path = Path("../shared/data")
    num_items: tuple[int, ...] = (10_000, 116_659)
    kinds: tuple[Kind, ...] = ("exact", "hnsw")
    peers: str = ""
    repetitions: int = 3
    seconds: float = 5.0
    most_s: float = 60.0
    work: Path | None = None

    @property
    def chosen(self) -> list[str]:
        """Names of peers.

        Raises:
            ValueError: if a name is none of them.
        """
        names = [name.strip() for name in self.peers.split(",") if name.strip()] or list(PEERS)
        if wrong := [name for name in names if name not in PEERS]:
            raise ValueError(f"--peers must be names among {', '.join(PEERS)}, with commas between, got {wrong[0]!r}")
        return names


def main(arguments: Arguments) -> None:
    """Measure all that is installed.

    Raises:
        ValueError: if a peer is unknown, or there are too few vectors.
        SystemExit: if a measurement failed; the others are recorded.
    """
    if (fewest := min(arguments.num_items, default=K)) < K:
        raise ValueError(f"--num-items must be at least {K}, as many as a query finds, got {fewest}")
    console, chosen = Console(), arguments.chosen
    for name in chosen:
        if packages := missing(name):
            console.print(f"{name} is left out: {', '.join(packages)} must be installed (the extra bench)")
    record, failed = Record("peers"), list[str]()
    for row in rows_of(arguments, [name for name in chosen if not missing(name)]):
        record.row(**row)
        console.print(row)
        failed += [f"{row['peer']} {row['kind']} {row['num_items']}"] if "failed" in row else []
    if failed:
        raise SystemExit(f"all measurements must succeed, got {len(failed)} that failed: {', '.join(failed)}")


def missing(name: str) -> list[str]:
    """Packages that a peer needs and that are not installed."""
    return [package for package in PEERS[name].packages if find_spec(package) is None]


def rows_of(arguments: Arguments, names: list[str]) -> Iterator[dict[str, Any]]:
    for num_items in arguments.num_items:
        with tempfile.TemporaryDirectory(prefix="rails-ray-peers-", dir=arguments.work) as name:
            folder = Path(name)
            folder.chmod(0o755)  # a server that refuses to be run by root reads its own folder below
            source = prepare(folder, arguments.data, num_items)
            for repetition in range(arguments.repetitions):
                for kind in arguments.kinds:
                    for peer in (peer for peer in names if kind in PEERS[peer].kinds):
                        setting = Setting(folder, kind, folder / "store", arguments.seconds, arguments.most_s)
                        facts = {"peer": peer, "kind": kind, "num_items": num_items, "repetition": repetition}
                        yield facts | {"vectors": source, **versions(peer), **measured(peer, setting)}


def versions(peer: str) -> dict[str, Any]:
    """The version of the package that a peer is named for, where it has one."""
    distributions = packages_distributions()
    for package in PEERS[peer].packages[:1]:
        for distribution in distributions.get(package, ()):
            try:
                return {"package": f"{distribution} {version(distribution)}"}
            except PackageNotFoundError:
                continue
    return {}


def measured(peer: str, setting: Setting) -> dict[str, Any]:
    """The measurements of a peer. A failure becomes a row, so that it does not end a run of hours."""
    setting.store.mkdir()
    try:
        started = time.perf_counter()
        wait(child("build", peer, setting), setting)
        built_s = time.perf_counter() - started
        facts = in_process(peer, setting) if peer in IN_PROCESS else served(SERVERS[peer], setting)
    except Exception as error:
        return {"failed": without_folders(f"{type(error).__name__}: {error}")}
    finally:
        shutil.rmtree(setting.store)
    first_s = built_s + facts["open_s"]
    return {"first_answer_s": round(first_s, 2), "build_s": round(built_s, 2), **facts}


def in_process(peer: str, setting: Setting) -> dict[str, Any]:
    """The row that a process has measured of itself."""
    started = time.perf_counter()
    with running(child("search", peer, setting), setting, stdout=subprocess.PIPE) as own:
        assert own.stdout is not None
        is_open = own.stdout.readline()
        open_s = time.perf_counter() - started
        facts = own.stdout.readline()
        own.wait()
    if not is_open or not facts:
        raise RuntimeError(f"a peer's process must print what it measured, got nothing: {last_line(setting)}")
    return {"open_s": round(open_s, 2), **json.loads(facts)}


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
