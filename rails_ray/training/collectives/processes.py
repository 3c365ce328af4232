"""A group of processes on this machine: for tests and benches, and for training on one machine without Ray."""

import pickle
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

Result = TypeVar("Result")


def in_processes(
    work: Callable[[], Result], num_workers: int, *, timeout_s: float = 600.0, backend: Literal["gloo", "nccl"] = "gloo"
) -> list[Result]:
    """Return what `work` returns in each of `num_workers` new processes, by rank. Each has one thread, or its own GPU.
    They have the environment that this process had when it first started such a group.

    Args:
        work: a function of a module that a new process can import; `group.rank` says where it runs.
        timeout_s: how long workers wait for one another.
        backend: what they communicate by; nccl needs a GPU for each.

    Raises:
        torch.multiprocessing.ProcessException: if one of them fails.
    """
    with tempfile.TemporaryDirectory(prefix="rails-ray-") as folder:
        arguments = (num_workers, timeout_s, backend, folder, work)
        # New processes as with spawn, but many can share one import: `set_forkserver_preload`.
        start_processes(_work, arguments, num_workers, start_method="forkserver")
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(num_workers)]


def _work(rank: int, num_workers: int, timeout_s: float, backend: str, folder: str, work: Callable[[], Result]) -> None:
    torch.set_num_threads(1)  # they share the cores
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=num_workers,
        timeout=timedelta(seconds=timeout_s),
    )
    result = work()
    Path(folder, str(rank)).write_bytes(pickle.dumps(result))
    dist.destroy_process_group()
