"""Where chunks of SOLAR are trained. Imports no Ray, as command lines are read before that is loaded."""

from dataclasses import dataclass
from typing import Literal, get_args

Backend = Literal["ray_train", "tasks"]


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Where chunks of SOLAR are trained.

    Args:
        backend: `ray_train`, or `tasks`, which start in a moment, for many small chunks.
        num_cpus: that each chunk reserves, and as many threads it has.
        num_gpus: GPUs, or a part of one, that each chunk reserves.
    """

    backend: Backend = "ray_train"
    num_cpus: float = 1
    num_gpus: float = 0

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}, got {self.backend!r}")
        if self.num_cpus < 0 or self.num_gpus < 0 or not self.num_cpus + self.num_gpus:
            raise ValueError(
                f"num_cpus and num_gpus must be at least 0, and one above, got {self.num_cpus:g} and {self.num_gpus:g}"
            )
