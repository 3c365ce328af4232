"""Room on a GPU for shards of a version, computed from the manifest before their items are read.

    needed = rows * (bytes of a row's state + its scores) + indexes, and the weights of a model that encodes there
    fixed  = CONTEXT_BYTES, and what FAISS works with if it has copies of indexes
    left   = min(share * total - fixed - taken here, free)

`share` is the part of a GPU that Ray reserves for a replica: several replicas on one GPU, each within its part, cannot
exceed its memory together, whichever of them loads first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rails_ray.errors import UnavailableError
from rails_ray.families.version import Version
from rails_ray.kernels.faiss_library import has_cagra
from rails_ray.search.indexes.faiss_on_gpu import GPU_WORKSPACE
from rails_ray.serving.missing_files import missing_indexes, missing_parts
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage.parquet import StateEntry

CONTEXT_BYTES = 0.95e9  # of a process: CUDA's own and what it loads; 0.93 GB of each of six on an H100 (gpu_system)
SCORE_BYTES = 8 * 32  # of an item: its scores for 32 queries, and what selects the best of them
# Copies of the state on the GPU, by the kind of items: codes of SOLAR and terms of BM25 have postings too.
COPIES = {"components": 1}
MOST_COPIES = 3
CAGRA_COPIES = {"fp32": 2, "fp16": 3, "sq8": 5}  # of hnsw's file, by reasoning, not measured


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of a GPU.

    total: its memory.
    free: what no process has taken, and what this one keeps without need.
    taken: by tensors of this process.
    """

    total: float
    free: float
    taken: float


def gpu_memory(device: str) -> GpuMemory:
    """The memory of a GPU as it is now."""
    free, total = torch.cuda.mem_get_info(device)
    taken = torch.cuda.memory_allocated(device)
    return GpuMemory(total, free + torch.cuda.memory_reserved(device) - taken, taken)


def check_gpu_room(
    version: Version,
    formers: Mapping[int, ShardSearch | None],
    device: str,
    share: float = 1.0,
    *,
    encodes: bool = False,
) -> None:
    """Check that shards fit into the memory of a GPU beside what this process has there. On a CPU nothing is checked.

    Args:
        formers: the shards to load, each with a search of it that is there already, whose base is shared; none if the
            process encodes alone.
        share: part of the GPU that this process may take; 1 and more for all of it.
        encodes: whether the version's model is loaded there too.

    Raises:
        UnavailableError: if they do not fit.
    """
    if torch.device(device).type != "cuda":
        return
    memory, share = gpu_memory(device), min(share, 1.0)
    weights = sum(entry.size_bytes for entry in version.described.weights) if encodes else 0
    needed = weights + sum(needed_bytes(version, shard, former) for shard, former in formers.items())
    workspace = _workspace_bytes(version, formers)
    is_first = all(former is None for former in formers.values())
    most = share * memory.total - CONTEXT_BYTES - workspace
    if needed > most:
        raise UnavailableError(
            f"version {version.name} must fit into {share * memory.total / 1e6:,.0f} MB, "
            f"{'all' if share == 1 else format(share, '.3g')} of the GPU's memory, got "
            f"{(needed + CONTEXT_BYTES + workspace) / 1e6:,.0f} MB: {_advice(version, formers, most - weights, share)}"
        )
    left = min(most - memory.taken, memory.free - is_first * workspace)
    if needed > left:
        raise UnavailableError(
            f"the GPU must have {needed / 1e6:,.0f} MB free to load version {version.name}, got {left / 1e6:,.0f} MB: "
            "stop what else uses it, or start the server anew"
        )


def needed_bytes(version: Version, shard: int, former: ShardSearch | None = None) -> float:
    """Compute what a shard takes of a GPU's memory beside a former search of it, without what every process takes."""
    rows = sum(
        part.num_items if part.delta is None else part.num_live for part in missing_parts(version, shard, former)
    )
    return rows * (row_bytes(version.described.state) + SCORE_BYTES) + _index_bytes(version, shard, former)


def row_bytes(state: StateEntry) -> int:
    """Compute what the state of an item takes."""
    stored: int = sum(
        math.prod(shape) * getattr(torch, state.dtypes[name]).itemsize for name, shape in state.shapes.items()
    )
    return stored * COPIES.get(state.kind, MOST_COPIES)


def _index_bytes(version: Version, shard: int, former: ShardSearch | None) -> int:
    """Compute what copies of indexes take; scans of 8 bits, and graphs unless FAISS has CAGRA, stay on the CPU."""
    config = version.family.index_config
    if config is None or (config.kind, config.storage) == ("flat", "sq8"):
        return 0
    if config.kind == "hnsw" and not has_cagra():
        return 0
    copies = CAGRA_COPIES[config.storage] if config.kind == "hnsw" else 1
    return copies * sum(entry.size_bytes for entry in missing_indexes(version, shard, former))


def _workspace_bytes(version: Version, formers: Mapping[int, ShardSearch | None]) -> int:
    """Compute what FAISS works with, once in a process, if it has copies of indexes; those in fp16 are ours."""
    config = version.family.index_config
    if config is not None and config.kind == "flat" and config.storage == "fp16":
        return 0
    return GPU_WORKSPACE if any(_index_bytes(version, shard, None) for shard in formers) else 0


def _advice(version: Version, formers: Mapping[int, ShardSearch | None], most: float, share: float) -> str:
    larger = "take a larger GPU" if share == 1 else "reserve more of a GPU"
    if not formers:
        return larger
    if len(formers) > 1:
        return f"{larger}, or serve its shards by replicas of their own"
    whole = sum(needed_bytes(version, shard) for shard in range(version.num_shards))
    if most <= 0 or whole / most > sum(version.described.shard_items):
        return larger
    return f"encode it in at least {math.ceil(whole / most)} shards, or {larger}"
