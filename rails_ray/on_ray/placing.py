"""Where chunks of SOLAR are trained. Imports no Ray, as command lines are read before that is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

Backend = Literal["ray_train", "tasks"]


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Where chunks of SOLAR are trained.

    Args:
        backend: `ray_train`, or `tasks`, which start in a moment, for many small chunks.
        num_cpus: that each chunk reserves, and as many threads it has.
        num_gpus: GPUs, or a part of one, that each chunk reserves; by default 1 where the cluster has any.
    """

    backend: Backend = "ray_train"
    num_cpus: float = 1
    num_gpus: float | None = None

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}, got {self.backend!r}")
        if not self.num_cpus > 0:
            raise ValueError(f"num_cpus must be above 0, got {self.num_cpus:g}")
        if self.num_gpus is not None and self.num_gpus < 0:
            raise ValueError(f"num_gpus must be at least 0, got {self.num_gpus:g}")

    def on(self, resources: Mapping[str, float], use_gpu: bool | None) -> "Placing":
        """The same with the number of GPUs that it left open.

        Args:
            resources: of the cluster, CPU and GPU.
            use_gpu: whether to use any; by default if the cluster has some.
        """
        if use_gpu is None:
            use_gpu = resources.get("GPU", 0) > 0
        if not use_gpu:
            return replace(self, num_gpus=0.0)
        return self if self.num_gpus is not None else replace(self, num_gpus=1.0)

    def room(self, resources: Mapping[str, float]) -> int:
        """How many chunks there is room for at once.

        Raises:
            ValueError: if there is none for a single one.
        """
        assert self.num_gpus is not None
        cpus, gpus = resources.get("CPU", 0), resources.get("GPU", 0)
        room = int(cpus / self.num_cpus)
        if self.num_gpus:  # parts of a GPU are parts of one and the same
            room = min(room, int(gpus / self.num_gpus if self.num_gpus > 1 else gpus * int(1 / self.num_gpus)))
        if room < 1:
            raise ValueError(
                f"the cluster must have the {self.num_cpus:g} CPUs and {self.num_gpus:g} GPUs that a chunk reserves, "
                f"got {cpus:g} and {gpus:g}: set --chunks.num-cpus and --chunks.num-gpus"
            )
        return room
