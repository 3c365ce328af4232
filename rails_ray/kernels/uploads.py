"""Copies of what a request brings to the GPU that searches.

A copy from ordinary memory waits until the GPU has done all that it was given before, which may be the scan of another
request. A copy from pinned memory takes its turn there, and the host goes on.
"""

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device | str | None) -> Tensor:
    """Return a tensor on a device, copied from pinned memory if that is a GPU; as it is if it is there."""
    if tensor.is_cpu and device is not None and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
