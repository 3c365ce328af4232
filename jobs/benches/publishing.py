"""Publishing: does a reader ever see half a version while two publishers write?

Two processes publish small versions to one S3 prefix (moto's server) as fast as they can; one
that loses reads again and retries. A third process polls: it opens the current version and checks each byte of it.

    python -m jobs.benches.publishing [--publishes 200]

A yes is no error in any poll, and no lost pointer: each winner names the version that was current before it, so the
names must chain all winners, each once.
"""

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from queue import Empty
from typing import Any

import boto3
import numpy as np
import pyarrow as pa
import torch
import tyro
from moto.server import ThreadedMotoServer
from rich.console import Console

from jobs.benches.record import Record
from rails_ray.cli import rendering
from rails_ray.errors import ConflictError, NotFoundError, RailsRayError
from rails_ray.modules.similarities.states import ItemState
from rails_ray.storage import manifest, parquet, parts, shards, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import Encoded

ROOT = "s3://publishing/bench"
SHARD_ITEMS = [40, 40]


@dataclass(frozen=True)
class Arguments:
    publishes: int = 200
    publishers: int = 2


def main(arguments: Arguments) -> None:
    record, console = Record("publishing"), Console()
    processes = multiprocessing.get_context("spawn")
    with s3_server():
        told: Any = processes.Queue()
        stop = processes.Event()
        poller = processes.Process(target=poll, args=(stop, told))
        poller.start()
        share = arguments.publishes // arguments.publishers
        publishers = [processes.Process(target=publish, args=(n, share, told)) for n in range(arguments.publishers)]
        started = time.monotonic()
        for publisher in publishers:
            publisher.start()
        wins: list[dict[str, Any]] = []
        with rendering.bar(console, "publish") as on_progress:
            while any(publisher.is_alive() for publisher in publishers) or not told.empty():
                try:
                    wins.append(told.get(timeout=1))
                except Empty:
                    continue
                on_progress(len(wins), share * arguments.publishers, "published")
        stop.set()
        polls = told.get(timeout=60)
        poller.join()
    befores = [win["previous"] for win in wins]
    chained = len(set(befores)) == len(wins) and set(befores) < {win["version"] for win in wins} | {None}
    row = {
        "publishes": len(wins),
        "publishers": arguments.publishers,
        "conflicts": sum(win["conflicts"] for win in wins),
        "seconds": time.monotonic() - started,
        "is_one_chain": chained,
        **polls,
    }
    record.row(**row)
    console.print(row)
    assert not polls["errors"], polls["errors"]
    assert chained, "two winners named the same version before them"


@contextmanager
def s3_server() -> Iterator[None]:
    """moto's server in this process, which only counts, until the block ends."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.get_host_and_port()[1]}",
        "NO_PROXY": "127.0.0.1",
    }
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="publishing")
    yield
    server.stop()


class Noting(Storage):
    """Storage that keeps each pointer that was swapped in."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.pointers: list[dict[str, Any]] = []

    def swap(self, path: str, data: bytes, tag: str | None) -> None:
        super().swap(path, data, tag)
        self.pointers.append(manifest.json_object(data, path))


def publish(number: int, count: int, told: Any) -> None:
    """A publisher: `count` versions, each tried until it has been current."""
    store = Noting(ROOT)
    for turn in range(count):
        encoded = encode(store, f"v-{number}-{turn:04d}", seed=number * count + turn)
        conflicts = 0
        while True:
            try:
                versions.publish(store, encoded, "now")
                break
            except ConflictError:
                conflicts += 1
        told.put({"version": encoded.version, "previous": store.pointers[-1]["previous"], "conflicts": conflicts})


def poll(stop: Event, told: Any) -> None:
    """A reader: the current version, whole, again and again."""
    store = Storage(ROOT)
    polls, seen, errors = 0, set(), []
    while not stop.is_set():
        try:
            current = versions.read_manifest(store)
            items = shards.read_shards(store, current, range(len(SHARD_ITEMS)), ItemState)
            manifest.read_file(store, current.version, current.file(manifest.CONFIG))
            assert len(items.item_ids) == sum(SHARD_ITEMS)
            polls += 1
            seen.add(current.version)
        except NotFoundError as error:
            if seen:
                errors.append(str(error))
        except (RailsRayError, AssertionError) as error:
            errors.append(str(error))
    told.put({"polls": polls, "versions_seen": len(seen), "errors": errors})


def encode(store: Storage, version: str, seed: int) -> Encoded:
    """A small version, ready to publish."""
    generator = torch.Generator().manual_seed(seed)
    planned = parts.plan(SHARD_ITEMS, 20)
    for part in planned:
        rows = np.arange(part.first_row, part.first_row + part.num_items)
        vectors = torch.randn(part.num_items, 1, 8, generator=generator)
        state = ItemState(vectors, None, vectors[:, 0])
        parts.write_part(store, version, part, parquet.item_part(pa.table({"item_id": rows}), state))
    return parts.finish(
        store,
        version,
        planned,
        run="none",
        query={"text": "string"},
        files=[(manifest.CONFIG, b"{}")],
        cutoff_mass=None,
    )


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
