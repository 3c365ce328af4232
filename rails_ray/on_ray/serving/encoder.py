"""The query encoder's deployment: a mailbox around the model's query side."""

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
from ray import serve as ray_serve

from rails_ray import build
from rails_ray.encoders.model import Model
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.similarities.states import QueryState, concatenate, map_tensors
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import read_manifest

LARGEST_NUMBER = 1e6  # of an embedding: far above what towers make, far below where float32 products overflow


@ray_serve.deployment(name="QueryEncoder", max_ongoing_requests=32)
class QueryEncoder:
    """Encodes queries with the model of one index version."""

    def __init__(self, storage: str, version: str) -> None:
        store = Storage(storage)
        self.model = build.version_model(store, read_manifest(store, version))
        self.device = reserved_device()
        self.model.to(self.device)

    async def encode(self, queries: Sequence[dict[str, Any]]) -> QueryState:
        """The state of queries, each with one of text and embedding."""
        return await asyncio.to_thread(encode, self.model, queries, self.device)

    async def width(self) -> int:
        """D; answering says that this replica is up."""
        return int(self.model.encoder.width)

    async def check_health(self) -> None:
        """The real path, once."""
        await self.encode([{"text": "health"}])


def encode(model: Model, queries: Sequence[dict[str, Any]], device: str = "cpu") -> QueryState:
    """The state of queries in their order, on the CPU.

    Raises:
        ValueError: if a query is neither text nor an embedding of the model's width, or its numbers are too large.
    """
    width = model.encoder.width
    for number, query in enumerate(queries):
        if query.get("history") is not None:
            raise ValueError(f"queries[{number}] must be a text or an embedding for this index, got a history")
        embedding = query.get("embedding")
        if embedding is not None and len(embedding) != width:
            raise ValueError(f"queries[{number}].embedding must have {width} numbers, got {len(embedding)}")
        if embedding is not None and max(map(abs, embedding)) > LARGEST_NUMBER:
            largest = max(embedding, key=abs)
            raise ValueError(f"queries[{number}].embedding must hold numbers up to {LARGEST_NUMBER:g}, got {largest:g}")
        if embedding is None and model.encoder.is_blank(query["text"]):
            raise ValueError(f"queries[{number}].text must hold a letter or a digit, got {query['text']!r}")
    is_text = [query.get("text") is not None for query in queries]
    texts = [query["text"] for query in queries if query.get("text") is not None]
    embeddings = [query["embedding"] for query in queries if query.get("text") is None]
    states, order = [], []
    with torch.no_grad():
        if texts:
            states.append(model.encode_queries(model.features(texts).to(device)))
            order += [number for number, is_one in enumerate(is_text) if is_one]
        if embeddings:
            states.append(model.query_state(torch.tensor(embeddings, device=device)))
            order += [number for number, is_one in enumerate(is_text) if not is_one]
        back = torch.tensor(order).argsort()
        return map_tensors(lambda tensor: tensor.cpu()[back].clone(), concatenate(states))
