"""Where pieces are trained that have one worker each, as SOLAR's chunks have. Imports no Ray, as command lines are read
before that is loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

Backend = Literal["ray_train", "tasks"]


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Where the chunks of SOLAR are trained, and every piece of a run that has one worker.

    Args:
        backend: `ray_train`, or `tasks`, which start in a moment and suit many small chunks.
        num_cpus: each chunk reserves so many CPUs and has as many threads.
        num_gpus: each chunk reserves so many GPUs, or a part of one; by default 1 if the cluster has any.
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
        if self.num_gpus is not None and self.num_gpus > 1 and not float(self.num_gpus).is_integer():
            raise ValueError(f"num_gpus must be at most 1, or whole, got {self.num_gpus:g}")

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

    def room(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """How many pieces there is room for at once.

        Args:
            nodes: resources of each, CPU and GPU.

        Raises:
            ValueError: if there is none for a single one.
        """
        room = sum(map(self._room_on, nodes))
        if room < 1:
            came = sorted({f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes})
            raise ValueError(
                f"a node of the cluster must have the {self.num_cpus:g} CPUs and {self.num_gpus:g} GPUs that a chunk "
                f"reserves, got {', '.join(came)}: set --chunks.num-cpus and --chunks.num-gpus"
            )
        return room

    def _room_on(self, node: Mapping[str, float]) -> int:
        assert self.num_gpus is not None
        gpus = node.get("GPU", 0)
        room = int(node.get("CPU", 0) / self.num_cpus)
        if self.num_gpus:  # parts of a GPU are parts of one and the same
            room = min(room, int(gpus / self.num_gpus if self.num_gpus > 1 else gpus * int(1 / self.num_gpus)))
        return room
