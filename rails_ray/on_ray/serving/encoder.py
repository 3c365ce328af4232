"""The query side of a version's model: what a request asks, as tensors. Part of the router, to save a hop."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from rails_ray.build.data import QUERY_FIELD
from rails_ray.build.version import version_model
from rails_ray.data.dataset import ItemLists, SparseRows
from rails_ray.data.sequences import histories_of
from rails_ray.models import Model
from rails_ray.models.solar import Solar
from rails_ray.on_ray.cluster import reserved_device
from rails_ray.on_ray.serving.schemas import QUERY_FORMS, shortened
from rails_ray.similarities.states import AnyQuery, concatenate, map_tensors, take
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import HISTORIES, ITEMS, Manifest, read_file

LARGEST_NUMBER = 1e6  # of an embedding: far above what towers make, far below where float32 products overflow

ItemId = str | int


@dataclass(frozen=True)
class EncodedQueries:
    """
    state: of the queries in their order.
    seen: items of each query's history.
    is_known: of each query, whether the model knows any part of it; None where it cannot tell.
    """

    state: AnyQuery
    seen: list[list[ItemId]]
    is_known: Sequence[bool | None]


class Histories:
    """Item rows by item id, and the history of each user."""

    def __init__(self, item_ids: Sequence[ItemId], user_ids: Sequence[ItemId], histories: ItemLists) -> None:
        self.item_ids = item_ids
        self.rows = {item_id: row for row, item_id in enumerate(item_ids)}
        self.users = {user_id: number for number, user_id in enumerate(user_ids)}
        self.histories = histories

    @staticmethod
    def read(store: Storage, manifest: Manifest) -> "Histories":
        """Those of a version.

        Raises:
            DamagedError: if their bytes are not those of the manifest.
        """
        items, histories = (
            pq.read_table(io.BytesIO(read_file(store, manifest.version, manifest.file(name))))
            for name in (ITEMS, HISTORIES)
        )
        return Histories(items["item_id"].to_pylist(), *histories_of(histories))

    def of(self, query: dict[str, Any], where: str) -> list[int]:
        """The item rows of a query's history.

        Raises:
            ValueError: if the user is not known, or no item of the history is.
        """
        user_id = query.get("user_id")
        if user_id is not None:
            if user_id not in self.users:
                raise ValueError(f"{where}.user_id must be a user that the index knows, got {shortened(user_id)}")
            rows: list[int] = self.histories[self.users[user_id]].tolist()
            return rows
        rows = [self.rows[item_id] for item_id in query["history"] if item_id in self.rows]
        if not rows:
            came = shortened(query["history"])
            raise ValueError(f"{where}.history must hold an item that the index knows, got {came}")
        return rows


class QueryEncoder:
    """Encodes queries with the model of one index version."""

    def __init__(self, store: Storage, manifest: Manifest) -> None:
        self.model = version_model(store, manifest)
        self.histories = Histories.read(store, manifest) if self.model.reads == "history" else None
        self.width = self.model.config.width if isinstance(self.model, Solar) else 0
        self.device = reserved_device()
        self.model.to(self.device)

    def __call__(self, queries: Sequence[dict[str, Any]]) -> EncodedQueries:
        """The state of queries; raises what `encode` does."""
        if isinstance(self.model, Solar):
            return encode_to_tables(self.model, queries, self.device)
        return encode(self.model, queries, self.histories, self.device)

    def check(self) -> None:
        """The real path, once."""
        examples: dict[str, dict[str, Any]] = {
            "text": {"text": "health"},
            "history": {"history": self.histories.item_ids[:1] if self.histories else []},
            "features": {"features": {}},
            "vector": {"embedding": [0.0] * self.width},
        }
        self([examples[self.model.reads]])


def encode(
    model: Model, queries: Sequence[dict[str, Any]], histories: Histories | None = None, device: str = "cpu"
) -> EncodedQueries:
    """The state of queries in their order, on the CPU.

    Args:
        queries: each with one of text, history, user_id and embedding.
        histories: for a model that reads them.

    Raises:
        ValueError: if a query is not what the model reads, or an embedding is not of its width, or too large.
    """
    takes = ("text", "embedding") if histories is None else ("history", "user_id", "embedding")
    inputs: list[str | list[int]] = []
    embeddings: list[list[float]] = []
    order: dict[bool, list[int]] = {False: [], True: []}  # query numbers, of inputs and of embeddings
    seen: list[list[ItemId]] = []
    for number, query in enumerate(queries):
        where = f"queries[{number}]"
        form = _form(query, takes, where)
        order[form == "embedding"].append(number)
        seen.append([])
        if form == "embedding":
            embeddings.append(_checked(query[form], model.representation_width or 0, where))
        elif histories is not None:
            rows = histories.of(query, where)
            inputs.append(rows)
            seen[-1] = [histories.item_ids[row] for row in rows]
        else:
            if model.is_blank(query["text"]):
                raise ValueError(f"{where}.text must hold a letter or a digit, got {shortened(query['text'])}")
            inputs.append(query["text"])
    states = []
    with torch.no_grad():
        if inputs:
            states.append(model.encode_queries(model.query_features(inputs).to(device)))
        if embeddings:
            states.append(model.query_state(torch.tensor(embeddings, device=device)))
        state = map_tensors(lambda tensor: tensor.cpu(), concatenate(states) if len(states) > 1 else states[0])
        if len(states) > 1:
            state = take(state, torch.tensor([*order[False], *order[True]]).argsort())
        return EncodedQueries(state, seen, [None] * len(queries))


def encode_to_tables(model: Solar, queries: Sequence[dict[str, Any]], device: str = "cpu") -> EncodedQueries:
    """The state of queries of SOLAR in their order, on the CPU. One of which nothing is known is encoded too.

    Raises:
        ValueError: if a query is not what the model reads, or an embedding is not of its width, or too large.
    """
    field = QUERY_FIELD[model.reads]
    inputs: list[Any] = []
    for number, query in enumerate(queries):
        where = f"queries[{number}]"
        value = query[_form(query, (field,), where)]
        if field == "embedding":
            _checked(value, model.config.width, where)
        if field == "features":
            outside = [feature for feature in value if not 0 <= feature < 2**31]
            if outside:
                raise ValueError(f"{where}.features must be numbered from 0 to {2**31 - 1}, got {outside[0]}")
            largest = max(value.values(), key=abs, default=0.0)
            if abs(largest) > LARGEST_NUMBER:
                raise ValueError(f"{where}.features must hold numbers up to {LARGEST_NUMBER:g}, got {largest:g}")
        inputs.append(value)
    read: Any = _sparse(inputs) if field == "features" else inputs
    with torch.no_grad():
        state = model.encode_queries(model.query_features(read).to(device))
    return EncodedQueries(map_tensors(lambda tensor: tensor.cpu(), state), [[] for _ in queries], model.are_known(read))


def _form(query: dict[str, Any], takes: Sequence[str], where: str) -> str:
    """By what a query is given, text or another of `QUERY_FORMS`.

    Raises:
        ValueError: if the index takes no such queries.
    """
    came = next(form for form in QUERY_FORMS if query.get(form) is not None)
    if came not in takes:
        raise ValueError(f"{where} must be given by {' or '.join(takes)} for this index, got {came}")
    return came


def _sparse(queries: list[dict[int, float]]) -> SparseRows:
    starts = np.cumsum([0, *map(len, queries)])
    indices = np.array([feature for query in queries for feature in query], dtype=np.int64)
    values = np.array([value for query in queries for value in query.values()], dtype=np.float32)
    return SparseRows(starts, indices, values, int(indices.max(initial=-1)) + 1)


def _checked(embedding: list[float], width: int, where: str) -> list[float]:
    if len(embedding) != width:
        raise ValueError(f"{where}.embedding must have {width} numbers, got {len(embedding)}")
    largest = max(embedding, key=abs)
    if abs(largest) > LARGEST_NUMBER:
        raise ValueError(f"{where}.embedding must hold numbers up to {LARGEST_NUMBER:g}, got {largest:g}")
    return embedding
