"""Nodes of the cluster: how many replicas each can hold, and local paths that all of them must find."""

import math
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

LOOK_S = 60.0  # limit for a node to say what it finds, the start of a process included


def rooms(num_cpus: float, num_gpus: float) -> list[float]:
    """How many replicas with these reservations each node is large enough for. What it has reserved for others already
    does not count."""
    each = {name: number for name, number in (("CPU", num_cpus), ("GPU", num_gpus)) if number}
    found: list[dict[str, float]] = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [
        min((math.floor(own.get(name, 0) / number + 1e-9) for name, number in each.items()), default=math.inf)
        for own in found
    ]


def check_shared(storage: str, others: Iterable[str | None] = ()) -> None:
    """Check that all nodes that take tasks find the local paths that this process finds. URLs are not looked at, and a
    process without a cluster, or on the only node, checks nothing.

    Args:
        storage: root of a storage. Into a local one that can be written to goes a probe file for a moment, as each node
            may have a folder of that name.
        others: files and folders that are read. They are asked for where there are several nodes.

    Raises:
        ValueError: if a node does not find one of them.
    """
    nodes = _others() if ray.is_initialized() else []
    local = [path for path in (storage, *(others if nodes else ())) if path and "://" not in path]
    local = [path for path in local if Path(path).exists()]
    if not nodes or not local:
        return
    probe = Path(storage) / f".probe-{uuid.uuid4().hex}"
    looked_for = {path: path for path in local}
    if storage in looked_for:
        with suppress(OSError):  # a folder that is only read
            probe.touch()
            looked_for = {str(probe): storage, **{path: path for path in local if path != storage}}
    try:
        looks = {node["NodeManagerAddress"]: _look(node["NodeID"], list(looked_for)) for node in nodes}
        for address, look in looks.items():
            lacking: list[str] = []
            with suppress(RayError):  # a node that has gone needs nothing
                lacking = ray.get(look, timeout=LOOK_S)
            for path in lacking:
                raise ValueError(
                    f"{looked_for[path]} must be the same on all nodes of the cluster, got none on node {address}: "
                    "mount it there, or take s3://, az:// or gs://bucket/prefix"
                )
    finally:
        if str(probe) in looked_for:  # a file system that is only read refuses to delete what is not there
            probe.unlink(missing_ok=True)


def _others() -> list[dict[str, Any]]:
    """The other nodes that take tasks, in the order of their addresses."""
    own = ray.get_runtime_context().get_node_id()
    found = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU") and node["NodeID"] != own]
    return sorted(found, key=lambda node: str(node["NodeManagerAddress"]))


def _look(node: str, paths: Sequence[str]) -> Any:
    return _lacking.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(paths)


@ray.remote(num_cpus=0, max_retries=0)
def _lacking(paths: Sequence[str]) -> list[str]:
    """The paths that this node does not find."""
    return [path for path in paths if not Path(path).exists()]
