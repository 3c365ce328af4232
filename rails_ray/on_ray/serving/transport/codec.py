"""Messages between routers and shards: msgpack, and tensors and arrays as they lie in memory. Reading them runs no code
of the sender, as pickle would.

A question names the version that it is for, and an answer the version that gave it: while one version replaces another,
routers and shards of both are up.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple, Protocol

import msgpack
import numpy as np
import torch

from rails_ray.modules.similarities.states import AnyQuery
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.spec import SearchResult
from rails_ray.serving.scope import Scope
from rails_ray.serving.shard_messages import ShardExplanation, ShardItems, ShardRequest, ShardResponse

ARRAY, TENSOR, RECORD, INTEGER = 1, 2, 3, 4  # msgpack's extension types; the last for more than 64 bits


class Reply(NamedTuple):
    """A replica's answer.

    identity: `Manifest.contents_sha256` of the version that it serves.
    value: None if the question was for another version.
    """

    identity: str
    value: Any


class Replica(Protocol):
    """A replica that answers messages.

    methods: what may be asked of it, each an `async` method of what `of` returns.
    """

    methods: frozenset[str]

    @property
    def identity(self) -> str:
        """`Manifest.contents_sha256` of the version that it serves, the newest if it serves several."""

    def of(self, identity: str) -> Any:
        """Return what answers for a version; None if it does not serve that."""


def question(identity: str, arguments: Sequence[Any]) -> bytes:
    """A message to a replica of a version; raises what `packed` does."""
    return packed([identity, list(arguments)])


def reply(message: bytes) -> Reply:
    """The answer in a message; raises what `unpacked` does."""
    return Reply(*unpacked(message))


async def answered(replica: Replica, method: str, message: bytes) -> bytes:
    """The message that answers a question. The method runs only if the question is for a version of the replica.

    Raises:
        KeyError, TypeError, ValueError: if the message is none, or there is no such method.
        Exception: what the method raises.
    """
    identity, arguments = unpacked(message)
    if method not in replica.methods:
        raise ValueError(f"method must be one of {', '.join(sorted(replica.methods))}, got {method!r}")
    of_version = replica.of(identity)
    if of_version is None:
        return packed([replica.identity, None])
    return packed([identity, await getattr(of_version, method)(*arguments)])


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
    asked = (ShardRequest, SearchParams, Scope)
    known = (*AnyQuery.__subclasses__(), *asked, SearchResult, ShardResponse, ShardExplanation, ShardItems)
    return {record.__name__: record for record in known}


def _extended(value: Any) -> msgpack.ExtType:
    if isinstance(value, torch.Tensor):
        return msgpack.ExtType(TENSOR, _of_array(value.numpy(force=True)))
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(ARRAY, _of_array(value))
    if isinstance(value, int):
        return msgpack.ExtType(INTEGER, b"%d" % value)
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
    if code == INTEGER:
        return int(body)
    if code not in (ARRAY, TENSOR):
        raise ValueError(f"an extension type must be {ARRAY}, {TENSOR}, {RECORD} or {INTEGER}, got {code}")
    dtype, shape, held = msgpack.unpackb(body)
    array = np.frombuffer(bytearray(held), np.dtype(dtype)).reshape(shape)  # a copy, as tensors must be writable
    return torch.from_numpy(array) if code == TENSOR else array
