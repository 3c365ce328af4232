"""A small version whose items come and go."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rails_ray import local
from rails_ray.serving.local import LocalVersion

WIDTH, NUM_BASE = 5, 30


def vectors_of(seeds: list[int]) -> NDArray[np.float32]:
    """A vector for each seed."""
    return np.stack([np.random.default_rng(seed).standard_normal(WIDTH) for seed in seeds]).astype(np.float32)


def made(folder: Path, num_items: int = NUM_BASE, index: str = "flat") -> LocalVersion:
    """A version `v1` of items whose ids and titles are their seeds."""
    seeds = list(range(num_items))
    return local.build(
        vectors_of(seeds), [f"i{seed}" for seed in seeds], titles=[f"t{seed}" for seed in seeds], folder=str(folder),
        index=index,
    )  # fmt: skip
