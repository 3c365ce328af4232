"""Repeatable randomness, for what is computed twice."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def new_seed() -> int:
    """A seed from torch's generator, the source of all randomness in a step."""
    return int(torch.randint(2**62, ()))


@contextmanager
def drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Inside the block, draws on the CPU and on this device depend on the seed alone. Then the former state returns."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
