"""Memory that versions take of the GPU of `gpu_system`, and the way of its replicas from one version to another."""

import time
from collections.abc import Mapping
from typing import Any

import httpx

from rails_ray.families.version import Version
from rails_ray.on_ray.serving.plan import DeploymentSize
from rails_ray.serving import local
from rails_ray.serving.gpu_room import CONTEXT_BYTES, needed_bytes
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage

ADDED = "a lighthouse made of marzipan"  # no emoji is one
FOLLOW_S, SWAP_S = 1.0, 90.0
MOST_OVER = 1.1  # of the memory that was planned


def planned_mb(storage: str, size: DeploymentSize) -> float | None:
    """Memory of a GPU that all replicas take by the manifest; None without a GPU."""
    if not size.num_gpus:
        return None
    version = Version.published(Storage(storage))
    of_shards = sum(CONTEXT_BYTES + needed_bytes(version, shard) for shard in range(version.num_shards))
    of_router = CONTEXT_BYTES if size.router_gpus else 0.0
    return size.replicas * (of_shards + of_router) / 1e6


def beside_plan(taken: float | None, planned: float | None) -> dict[str, Any]:
    """Compare what replicas took with what was planned."""
    if planned is None:
        return {}
    row: dict[str, Any] = {"planned_mb": planned}
    if taken is not None and taken > MOST_OVER * planned:
        row["failed"] = f"replicas must take at most {MOST_OVER:g} of {planned:.0f} MB, got {taken:.0f}"
    return row


def gpu_scans(url: str) -> list[str]:
    """Ask the server how its GPUs scan."""
    found: list[str] = httpx.get(f"{url}/v1/index", timeout=60, trust_env=False).json()["gpu_scans"]
    return found


def swapped(url: str, storage: str) -> dict[str, Any]:
    """Add an item, which must be found once the new version is served, and go back, after which it must not."""
    store, before = Storage(storage), versions.current_version(Storage(storage))
    began = time.perf_counter()
    made = local.open(storage).add([ADDED], ["added"]).manifest.version
    row: dict[str, Any] = {"there_s": _wait(url, made, True) - began}
    began = time.perf_counter()
    versions.rollback(store, before)
    return row | {"back_s": _wait(url, before, False) - began}


def _wait(url: str, version: str, is_there: bool) -> float:
    """Wait until a version answers, every request on the way being answered.

    Raises:
        RuntimeError: if it does not in time, or answers wrongly.
    """
    body: Mapping[str, Any] = {"queries": [{"text": ADDED}], "k": 1, "cutoff": {"top_k": 1}}
    ends = time.perf_counter() + SWAP_S
    while time.perf_counter() < ends:
        answer = httpx.post(f"{url}/v1/search", json=body, timeout=60, trust_env=False)
        answer.raise_for_status()
        found = answer.json()
        if found["version"] == version:
            if (found["results"][0]["items"] == ["added"]) != is_there:
                raise RuntimeError(f"the added item must {'' if is_there else 'not '}be found, got {found['results']}")
            return time.perf_counter()
        time.sleep(0.05)  # an answer alone says which version the server has taken
    raise RuntimeError(f"version {version} must answer within {SWAP_S:g} s, got {found['version']}")
