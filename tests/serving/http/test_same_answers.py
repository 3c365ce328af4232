"""A version in this process and a client of its server: one request, one answer, one sentence."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.client import AsyncClient, Client
from rails_ray.errors import RailsRayError
from rails_ray.schema.responses import Response
from rails_ray.serving.local import LocalVersion

VECTOR = np.linspace(-1, 1, 8, dtype=np.float32)
REQUESTS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "texts": ("search", (["red", "blue hat"],), {"k": 7}),
    "a cut-off": ("search", (["red"],), {"cutoff": {"mass": 0.9}}),
    "an approximate method": ("search", (["red"],), {"k": 3, "method": "per_embedding", "num_candidates": 5}),
    "fields": ("search", ([{"text": "red", "exclude": ["item-1", "nowhere"]}],), {"k": 60, "ids": "string"}),
    "vectors": ("search", (np.stack([VECTOR, -VECTOR]), 3), {}),
    "tensors": ("search", (torch.from_numpy(VECTOR)[None], 3), {}),
    "a list of numbers": ("search", ([VECTOR.tolist(), list(VECTOR)], 3), {}),
    "an explanation": ("explain", ("red", ["item-1", "item-2"]), {}),
    "of a vector": ("explain", (VECTOR, ["item-3"]), {"ids": "string"}),
    "feedback": ("feedback", (["red", {"text": "blue"}], [["item-1"], ["item-2", "item-3"]]), {"k": 9}),
    "feedback by a cut-off": ("feedback", (["red"], [["item-1"]]), {"cutoff": {"score": 0.1}}),
    "vectors of queries": ("embed", (["red", "blue hat"],), {}),
    "vectors of items": ("embed", (["red"], "document"), {}),
    "the index": ("index", (), {}),
}
REFUSED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "no query": ("search", ([],), {}),
    "a number as a query": ("search", ([3],), {}),
    "a blank text": ("search", (["?!"],), {}),
    "texts as a vector": ("search", ([["a", "b"]],), {}),
    "NaN": ("search", ([[float("nan")] * 8],), {}),
    "a narrow vector": ("search", ([[1.0, 2.0]],), {}),
    "an unknown option": ("search", (["red"],), {"wrong": 1}),
    "a wrong k": ("search", (["red"], 0), {}),
    "a cut-off that the version lacks": ("search", (["red"],), {"cutoff": {"coverage": 0.9}}),
    "a blank text to explain": ("explain", ("?!", ["item-1"]), {}),
    "an item that is not there": ("explain", ("red", ["item-1", "nowhere"]), {}),
    "no item": ("explain", ("red", []), {}),
    "feedback on a blank text": ("feedback", (["red", "?!"], [["item-1"]] * 2), {}),
    "feedback on too few queries": ("feedback", (["red"], []), {}),
    "too many queries": ("search", (["red"] * 2000,), {}),
    "too much feedback": ("feedback", (["red"] * 2000, [["item-1"]] * 2000), {}),
    "a blank text to embed": ("embed", (["red", "?!"],), {}),
    "too many texts": ("embed", (["red"] * 2000,), {}),
}


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def outcome(ask: Callable[[], Any]) -> Any:
    """The answer, or the error's type and sentence."""
    try:
        return ask()
    except (ValueError, RailsRayError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("request_name", [*REQUESTS, *REFUSED])
def test_both_answer_alike(request_name: str, url: str, server: Client, version: LocalVersion) -> None:
    method, arguments, options = (REQUESTS | REFUSED)[request_name]

    async def asynchronously() -> Any:
        async with AsyncClient(url) as client:
            return await getattr(client, method)(*arguments, **options)

    here = outcome(lambda: getattr(version, method)(*arguments, **options))
    there = outcome(lambda: getattr(server, method)(*arguments, **options))
    then = outcome(lambda: asyncio.run(asynchronously()))
    assert isinstance(here, tuple) == (request_name in REFUSED), here
    assert type(here) is type(there) is type(then)
    if request_name == "the index":
        assert {type(answer.pop("served_since")) for answer in (here, there, then)} == {str}
    if isinstance(here, Response):
        here, there, then = (answer.model_dump() for answer in (here, there, then))
    assert here == there == then


def test_both_have_the_same_methods_with_the_same_arguments() -> None:
    names = {name for name in vars(Client) if not name.startswith("_")}
    questions = {"search", "explain", "feedback", "embed", "index"}
    assert names == questions | {"upsert", "delete"}
    for name in questions:
        client, own = (inspect.signature(getattr(kind, name)) for kind in (Client, LocalVersion))
        assert client.return_annotation == own.return_annotation
        named = {name: one.default for name, one in own.parameters.items() if one.kind != one.VAR_KEYWORD}
        assert all(named[arg] == one.default for arg, one in client.parameters.items() if arg in named)
        assert set(client.parameters) <= set(own.parameters)


def test_both_say_the_same_of_their_traffic(server: Client, version: LocalVersion) -> None:
    assert version.index().keys() == server.index().keys()
    for name in ("shadow", "feedback", "drift"):
        assert version.index()[name].keys() == server.index()[name].keys()
