"""The workers of the default process group, and what must hold of their tensors before they are exchanged.

Each worker looks at a short description of what all workers hold, so that all stop with the same message, and none
waits for one that has stopped.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from rails_ray.errors import LostWorkerError

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool)
NUM_AXES, NUM_TENSORS = 4, 8  # limits: axes of an exchanged tensor, tensors of one exchange


class Place(NamedTuple):
    """
    rank: this worker's rank.
    sizes: lines that each worker brings, by rank.
    """

    rank: int
    sizes: list[int]

    @property
    def own(self) -> slice:
        """This worker's lines among all workers' lines."""
        return slice(self.first(self.rank), self.first(self.rank + 1))

    def first(self, worker: int) -> int:
        """The first line of a worker."""
        return sum(self.sizes[:worker])


def num_workers() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def device() -> torch.device:
    """Where tensors must be to be exchanged."""
    return torch.device("cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu")


@contextmanager
def communicating(what: str) -> Iterator[None]:
    """Inside the block all workers take part in the same exchange.

    Raises:
        LostWorkerError: if one of them has died, or did not come within the group's timeout; over nccl that ends the
            process itself, unless the block waits for the answer.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise LostWorkerError(
            f"all {num_workers()} workers must take part in {what}, worker {rank()} got: {reason}: "
            "another worker has died or has taken too long"
        ) from error


def place_of(tensors: Sequence[Tensor], what: str) -> Place:
    """Where the lines of this worker's tensors stand among all workers' lines.

    Args:
        tensors: tensors with equally many lines, on the device that the workers communicate by.
        what: names the tensors in messages.

    Raises:
        ValueError: on every worker, if the tensors differ in more than the number of their lines.
        FloatingPointError: on every worker, if one worker's tensors hold NaN or an infinity.
        LostWorkerError: as `communicating`.
    """
    if num_workers() == 1:
        return Place(0, [len(tensors[0])])
    nothing = [0, 1, -1] + [0] * (NUM_AXES - 1)
    described = [_described(tensor) for tensor in tensors]
    own_lines = torch.tensor(described + [nothing] * (NUM_TENSORS - len(described)), device=tensors[0].device)
    # Only what all workers say is looked at: each look waits for a GPU.
    own_lines[: len(tensors), 1] = torch.stack([tensor.isfinite().all() for tensor in tensors])
    heard = [torch.empty_like(own_lines) for _ in range(num_workers())]
    with communicating(f"sharing {what}"):
        dist.all_gather(heard, own_lines)
        of_workers = torch.stack(heard).tolist()  # [W, tensors, lines and finite and dtype and axes]
    _check_alike(of_workers, what)
    _check_finite(of_workers, what)
    return Place(rank(), [of_worker[0][0] for of_worker in of_workers])


def _check_alike(of_workers: list[list[list[int]]], what: str) -> None:
    for worker, described in enumerate(of_workers):
        for first, other in zip(of_workers[0], described, strict=True):
            if first[2:] != other[2:]:
                raise ValueError(
                    f"{what} must be of one size and dtype on all workers, got {_named(first)} on worker 0 and "
                    f"{_named(other)} on worker {worker}: start all of them with the same config"
                )


def _check_finite(of_workers: list[list[list[int]]], what: str) -> None:
    broken = [worker for worker, described in enumerate(of_workers) if not all(one[1] for one in described)]
    if broken:
        raise FloatingPointError(
            f"{what} must be finite on all workers, got NaN or an infinity on worker "
            f"{' and '.join(map(str, broken))}: lower training.learning_rate"
        )


def _described(tensor: Tensor) -> list[int]:
    """Lines, room for whether all is finite, dtype, and the sizes of the further axes."""
    assert tensor.dim() <= NUM_AXES
    further = list(tensor.shape[1:])
    padding = [0] * (NUM_AXES - 1 - len(further))
    dtype = DTYPES.index(tensor.dtype) if tensor.dtype in DTYPES else len(DTYPES)
    return [len(tensor), 0, dtype, *further, *padding]


def _named(described: list[int]) -> str:
    if described[2] == -1:
        return "none"
    sizes = [str(size) for size in described[3:] if size]
    dtype = "of another dtype" if described[2] == len(DTYPES) else str(DTYPES[described[2]]).removeprefix("torch.")
    return f"[{', '.join(['lines', *sizes])}] {dtype}"
