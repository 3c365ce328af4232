"""Values between routers and shards as bytes: msgpack, and tensors and arrays as they lie in memory. Reading them runs
no code of the sender, as pickle would."""

from dataclasses import fields
from typing import Any

import msgpack
import numpy as np
import torch

from rails_ray.modules.similarities.states import AnyQuery
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.spec import SearchResult
from rails_ray.serving.shard_search import ShardExplanation, ShardRequest, ShardResponse

ARRAY, TENSOR, RECORD = 1, 2, 3  # msgpack's extension types


def packed(value: Any) -> bytes:
    """
    Args:
        value: what msgpack knows, arrays, tensors, encoded queries, and the dataclasses of a shard's question and
            answer, in lists, tuples and dictionaries.

    Raises:
        TypeError: if anything else is in it.
    """
    found: bytes = msgpack.packb(value, default=_extended)
    return found


def unpacked(body: bytes) -> Any:
    """The value; a tuple becomes a list.

    Raises:
        ValueError: if the bytes are no such value.
        KeyError, TypeError: if they name a dataclass that is not known, or that has other fields.
    """
    return msgpack.unpackb(body, ext_hook=_from_extended)


def _records() -> dict[str, type[Any]]:
    """The dataclasses that travel. A family's own kind of query is among them."""
    known = (*AnyQuery.__subclasses__(), ShardRequest, SearchParams, SearchResult, ShardResponse, ShardExplanation)
    return {record.__name__: record for record in known}


def _extended(value: Any) -> msgpack.ExtType:
    if isinstance(value, torch.Tensor):
        return msgpack.ExtType(TENSOR, _of_array(value.numpy(force=True)))
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(ARRAY, _of_array(value))
    name = type(value).__name__
    if _records().get(name) is not type(value):
        raise TypeError(f"a value between router and shard must be of a kind that travels, got {name}")
    held = {field.name: getattr(value, field.name) for field in fields(value)}
    return msgpack.ExtType(RECORD, packed([name, held]))


def _of_array(array: np.ndarray) -> bytes:
    found: bytes = msgpack.packb([array.dtype.str, array.shape, array.tobytes()])
    return found


def _from_extended(code: int, body: bytes) -> Any:
    if code == RECORD:
        name, held = unpacked(body)
        return _records()[name](**held)
    if code not in (ARRAY, TENSOR):
        raise ValueError(f"an extension type must be {ARRAY}, {TENSOR} or {RECORD}, got {code}")
    dtype, shape, held = msgpack.unpackb(body)
    array = np.frombuffer(bytearray(held), np.dtype(dtype)).reshape(shape)  # a copy, as tensors must be writable
    return torch.from_numpy(array) if code == TENSOR else array
