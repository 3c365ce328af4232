"""Where to train pieces with one worker each, such as SOLAR's chunks. Imports no Ray: the command line is parsed before
Ray is loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

Backend = Literal["ray_train", "tasks"]


@dataclass(frozen=True, kw_only=True)
class TrainResources:
    """Where to train the chunks of SOLAR, and any other piece of a run with one worker.

    Args:
        backend: `ray_train`, or `tasks`: plain tasks start quickly and suit many small chunks.
        num_cpus: CPUs that each chunk reserves; it uses as many threads.
        num_gpus: GPUs, or part of one, that each chunk reserves; by default 1 if the cluster has any.
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

    def on(self, resources: Mapping[str, float], use_gpu: bool | None) -> "TrainResources":
        """Decide the number of GPUs.

        Args:
            resources: CPU and GPU of the whole cluster.
            use_gpu: whether to use GPUs; by default if the cluster has any.
        """
        if use_gpu is None:
            use_gpu = resources.get("GPU", 0) > 0
        if not use_gpu:
            return replace(self, num_gpus=0.0)
        return self if self.num_gpus is not None else replace(self, num_gpus=1.0)

    def room(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """How many pieces fit on the cluster at once.

        Args:
            nodes: CPU and GPU of each node.

        Raises:
            ValueError: if no node has room for a single piece.
        """
        room = sum(map(self._room_on, nodes))
        if room < 1:
            given = sorted({f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes})
            raise ValueError(
                f"a node of the cluster must have the {self.num_cpus:g} CPUs and {self.num_gpus:g} GPUs that a chunk "
                f"reserves, got {', '.join(given)}: set --chunks.num-cpus and --chunks.num-gpus"
            )
        return room

    def _room_on(self, node: Mapping[str, float]) -> int:
        assert self.num_gpus is not None
        gpus = node.get("GPU", 0)
        room = int(node.get("CPU", 0) / self.num_cpus)
        if self.num_gpus:  # parts of a GPU must come from the same GPU
            room = min(room, int(gpus / self.num_gpus if self.num_gpus > 1 else gpus * int(1 / self.num_gpus)))
        return room
