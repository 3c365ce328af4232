"""Values between router and shard: what is read is what was written, of known kinds only."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from rails_ray.modules.similarities.bm25 import TermCounts
from rails_ray.modules.similarities.states import AnyQuery, Tables
from rails_ray.on_ray.serving.transport.codec import RECORD, packed, unpacked
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.spec import SearchResult
from rails_ray.serving.scope import Scope
from rails_ray.serving.shard_messages import ShardExplanation, ShardItems, ShardRequest, ShardResponse
from support.examples import random_states

QUERY, _ = random_states(3, 5, p_q=2, p_x=2, width=6)
FOUND = SearchResult(
    scores=torch.tensor([[1.0, -torch.inf]]),
    item_rows=torch.tensor([[4, 0]]),
    bound=torch.tensor([torch.inf]),
    is_truncated=torch.tensor([False]),
    num_scored=torch.tensor([5]),
    reasons=["why"],
)
VALUES = [
    QUERY,
    replace(QUERY, gate=None),
    Tables(torch.rand(2, 3, 4), torch.ones(2)),
    TermCounts(torch.tensor([[1, -1]]), torch.tensor([[2.0, 0.0]]), torch.ones(1)),
    ShardRequest(
        "gated", SearchParams(num_candidates=7, nprobe=3), 10, np.array([0.5, -np.inf], np.float32), 2, True, True
    ),
    ShardRequest("ann", SearchParams(), 3, scope=Scope('{"price":1}', [[1, "a"], None, []]), fields=["price"]),
    ShardResponse(FOUND, [["a"], [2**62]], None, np.array([5]), [["ü"], []], [np.zeros((1, 2), np.float32)]),
    ShardResponse(
        FOUND, [["a"]], None, np.array([5]), fields=[[{"at": "2026-01-01T00:00:00Z", "tags": ["a"], "b": None}]]
    ),
    ShardItems(["a", 3], [{"price": 9.5}, {"price": None}]),
    Scope(None, None),
    ShardExplanation(["a", 3], ["title", ""], [0.1], [[[1.0]]], [[[0.25]]]),
    [2**64, -(2**70), 10**40],
    [1, "a", None, {"k": [True, 2.5]}, np.arange(6).reshape(2, 3), np.zeros((0, 4), np.float64)],
]


def equal(one: Any, other: Any) -> bool:
    """The same kinds with the same contents; a tuple is read as a list."""
    one, other = (list(own) if isinstance(own, tuple) else own for own in (one, other))
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        return all(equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, torch.Tensor | np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    assert equal(unpacked(packed(value)), value)


def test_what_is_read_may_be_written_to() -> None:
    read = unpacked(packed(torch.zeros(2)))
    read += 1
    assert read.tolist() == [1, 1]


def test_a_new_kind_of_query_travels_without_being_named_here() -> None:
    @dataclass(frozen=True)
    class OwnQuery(AnyQuery):
        kind = "own"
        own: torch.Tensor
        temperature: torch.Tensor

        def __len__(self) -> int:
            return len(self.own)

    query = OwnQuery(torch.rand(2, 3), torch.ones(2))
    assert equal(unpacked(packed(query)), query)


def test_other_kinds_are_neither_written_nor_read() -> None:
    with pytest.raises(TypeError, match="must be of a kind that travels, got object"):
        packed([object()])
    with pytest.raises(KeyError, match="Popen"):
        unpacked(msgpack.packb(msgpack.ExtType(RECORD, msgpack.packb(["Popen", {"args": "true"}]))))
    with pytest.raises(ValueError, match="an extension type must be 1, 2, 3 or 4, got 9"):
        unpacked(msgpack.packb(msgpack.ExtType(9, b"")))
