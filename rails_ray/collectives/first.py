"""What the first worker decided, told to all: a checkpoint that it read, a measure that it took."""

from typing import Any, TypeVar

import torch.distributed as dist

Value = TypeVar("Value")


def from_first(value: Value) -> Value:
    """The first worker's value, on every worker; the value itself where there is no process group."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    values: list[Any] = [value]
    dist.broadcast_object_list(values, src=0)
    told: Value = values[0]
    return told
