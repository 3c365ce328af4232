"""Randomness that can be had a second time: for what is computed again."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def new_seed() -> int:
    """Drawn from torch's generator, as everything that a step draws."""
    return int(torch.randint(2**62, ()))


@contextmanager
def drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Inside the block what is drawn, on the CPU and on this device, depends on the seed alone; after it, as before."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
