"""A GPU that fails under load: what CUDA says of it, as errors of ours.

After most of its errors CUDA answers every later call of the process with an error, so that only another process can go
on: an answer that is wrong is never one of the outcomes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rails_ray.errors import LostGpuError, UnavailableError

CUDA = ("CUDA", "cuBLAS", "CUBLAS", "device-side assert")  # how the errors of torch and FAISS name it


@contextmanager
def gpu_failures(device: str) -> Iterator[None]:
    """Inside the block, turn errors of a GPU into ours; errors that leave it working stay as they are.

    Raises:
        UnavailableError: if its memory is too small for what was asked of it.
        LostGpuError: if it works no more.
    """
    try:
        yield
    except RuntimeError as error:
        if torch.device(device).type != "cuda":
            raise
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):  # of torch, or of FAISS
            raise UnavailableError(
                "a search must fit into the free memory of the GPU, got more: ask for fewer queries or items at once, "
                "or reserve more of the GPU"
            ) from error
        if any(word in str(error) for word in CUDA):
            check_gpu(device)
        raise


def check_gpu(device: str) -> None:
    """Let the device compute a number, and wait for it.

    Raises:
        LostGpuError: if it does not.
    """
    try:
        found = one_and_one(device)
    except RuntimeError as error:
        raise LostGpuError(f"{_lost(device)} an error ({_first_line(error)}): start another process") from error
    if found != 2:
        raise LostGpuError(f"{_lost(device)} {found:g} for 1 + 1: start another process")


def one_and_one(device: str) -> float:
    """Return 2, as the device computes it."""
    return (torch.ones(1, device=device) + 1).item()


def _lost(device: str) -> str:
    return f"device {device} must work, got"


def _first_line(error: RuntimeError) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
