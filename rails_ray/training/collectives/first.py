"""Tell all workers what the first one decided: a checkpoint that it read, a measure that it took."""

from typing import Any, TypeVar

import torch.distributed as dist

from rails_ray.training.collectives.group import communicating, num_workers

Value = TypeVar("Value")


def from_first(value: Value) -> Value:
    """The first worker's value, on every worker; the value itself if there is no process group.

    Raises:
        LostWorkerError: if a worker has died or does not answer.
    """
    if num_workers() == 1:
        return value
    values: list[Any] = [value]
    with communicating("hearing the first worker"):
        dist.broadcast_object_list(values, src=0)
    first: Value = values[0]
    return first
