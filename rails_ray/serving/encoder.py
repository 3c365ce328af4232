"""The query side of a version's model: a request's queries as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from rails_ray.data.forms import FORMS, QueryReader
from rails_ray.data.queries import UnknownQueryError
from rails_ray.errors import UnsupportedError
from rails_ray.families.version import Version
from rails_ray.item_ids import ItemId
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyQuery, concatenate, take, to
from rails_ray.schema.fields import LARGEST_NUMBER, SUPPORTS, check_embedding, check_text
from rails_ray.schema.queries import QUERY_FIELDS
from rails_ray.serving.gpu_faults import gpu_failures
from rails_ray.storage.manifest import NO_RUN

REPRESENTATION = "embedding"  # the field for a query given by its representation


@dataclass(frozen=True)
class EncodedQueries:
    """
    state: state of the queries, in order.
    seen: items in each query's history.
    is_known: whether the model knows any part of each query; None if it cannot tell.
    """

    state: AnyQuery
    seen: list[list[ItemId]]
    is_known: Sequence[bool | None]


class QueryEncoder:
    """Encodes queries with the model of one version. A GPU that fails is an error as `gpu_failures` has it.

    supports: what a heavy ranker must score for a query first; nothing for most models.
    """

    def __init__(self, version: Version, device: str = "cpu") -> None:
        self.model = version.model
        self.reader = FORMS[self.model.form].reader(self.model, version.file)
        self.texts = version.query_encoder
        self.run = version.described.run
        self.supports = version.family.supports(self.model)
        self.device = device
        self.model.to(self.device)

    def __call__(self, queries: Sequence[dict[str, Any]], supports: Sequence[Any] = ()) -> EncodedQueries:
        """Encode queries; raises what `encode` does.

        Args:
            supports: what the heavy ranker says of each query's supports; None where the model has none.
        """
        queries = self._as_vectors(queries)
        ids = [support.item_id for support in self.supports]
        scored = [
            query if own is None else {**query, SUPPORTS: dict(zip(ids, own, strict=True))}
            for query, own in zip(queries, supports or [None] * len(queries), strict=True)
        ]
        with gpu_failures(self.device):
            return encode(self.model, self.reader, scored, self.device)

    def of_vectors(self, vectors: Float[np.ndarray, "B D"]) -> EncodedQueries | None:
        """Encode queries that are vectors, or the representations of queries, all at once; None if one of them cannot
        be read, for `__call__` to say why."""
        nobody: list[list[ItemId]] = [[] for _ in vectors]
        with torch.no_grad(), gpu_failures(self.device):
            if REPRESENTATION in FORMS[self.model.form].fields:
                inputs = self.reader.batch_of(vectors)
                if inputs is None:
                    return None
                features = self.model.query_features(inputs)
                features = features if self.device == "cpu" else features.to(self.device)
                state = self.model.encode_queries(features)
                state = state if self.device == "cpu" else to(state, "cpu")
                return EncodedQueries(state, nobody, self.model.are_known(inputs))
            if self.model.representation_width != vectors.shape[1] or np.abs(vectors).max() > LARGEST_NUMBER:
                return None
            state = self.model.query_state(torch.from_numpy(vectors).to(self.device))
            return EncodedQueries(to(state, "cpu"), nobody, [None] * len(vectors))

    def check_queries(self, queries: Sequence[dict[str, Any]]) -> None:
        """Raises:
        ValueError: as `encode`, for queries that are read before a heavy ranker is asked about them.
        """
        _read(self.model, self.reader, self._as_vectors(queries))

    def _as_vectors(self, queries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The queries, texts as vectors if the version has a model that reads them.

        Raises:
            ValueError: if there is nothing to read in a text, or queries are vectors and no model reads texts.
        """
        found = list(queries)
        texts = {number: query["text"] for number, query in enumerate(found) if query.get("text") is not None}
        if texts and self.texts is None and REPRESENTATION in FORMS[self.model.form].fields:
            raise ValueError(
                f"queries[{min(texts)}] must be given by {REPRESENTATION} for this index, got text: {self._for_texts}"
            )
        if self.texts is None or not texts:
            return found
        for number, text in texts.items():
            check_text(text, self.texts.is_blank(text), f"queries[{number}]")
        vectors = self.texts.query_features(list(texts.values())).tensor.tolist()
        for number, vector in zip(texts, vectors, strict=True):
            found[number] = {**found[number], "text": None, REPRESENTATION: vector}
        return found

    @property
    def _for_texts(self) -> str:
        """Say how a version of vectors that reads texts is made."""
        of_run = f"rails-ray encode --run {self.run} --query-encoder MODEL"
        make = "local.build(vectors, query_encoder=MODEL)" if self.run == NO_RUN else of_run
        return f"to search by text, make a version with `{make}`, where MODEL is the model that made the items' vectors"

    def unknown(self, queries: Sequence[dict[str, Any]]) -> set[int]:
        """The numbers of the queries of which the model knows nothing; raises what `encode` does of all others."""
        found = set()
        for number, query in enumerate(queries):
            try:
                _read(self.model, self.reader, [query], number)
            except UnknownQueryError:
                found.add(number)
        return found

    def represent(self, texts: Sequence[str], *, are_items: bool = False) -> Float[np.ndarray, "B D"]:
        """Encode each text as a query, which a search takes in the field `embedding`, or as an item.

        Raises:
            UnsupportedError: if the model has no such vector.
            ValueError: if the model cannot read a query.
        """
        if self.texts is not None:
            for number, text in enumerate(texts):
                check_text(text, self.texts.is_blank(text), f"queries[{number}]")
            read_texts = self.texts.item_features if are_items else self.texts.query_features
            return read_texts(texts).tensor.numpy()
        if self.model.representation_width is None:
            how = f": {self._for_texts}" if REPRESENTATION in FORMS[self.model.form].fields else ""
            raise UnsupportedError(f"the version's model must make one vector of a query, got one that does not{how}")
        read, _ = _read(self.model, self.reader, [{"text": text} for text in texts])
        features_of = self.model.item_features if are_items else self.model.query_features
        with torch.no_grad(), gpu_failures(self.device):
            features = features_of(self.reader.batch(list(read.values())))
            return self.model.represent(features.to(self.device), are_items=are_items).numpy(force=True)

    def check(self) -> EncodedQueries:
        """Encode one example query."""
        return self(
            [self.reader.example()], [np.zeros(len(self.supports))] if self.supports else ()
        )  # no ranker is asked


def encode(model: Model, reader: QueryReader, queries: Sequence[dict[str, Any]], device: str = "cpu") -> EncodedQueries:
    """The state of queries in their order, on the CPU.

    Args:
        reader: reads queries in the model's form.
        queries: each has one field of a request's query.

    Raises:
        ValueError: if the model cannot read a query, or an embedding has another width or is too large.
    """
    read, representations = _read(model, reader, queries)
    seen = [reader.seen(read[number]) if number in read else [] for number in range(len(queries))]
    is_known: list[bool | None] = [None] * len(queries)
    states = []
    with torch.no_grad():
        if read:
            inputs = reader.batch(list(read.values()))
            states.append(model.encode_queries(model.query_features(inputs).to(device)))
            for number, is_seen in zip(read, model.are_known(inputs), strict=True):
                is_known[number] = is_seen
        if representations:
            states.append(model.query_state(torch.tensor(list(representations.values()), device=device)))
        state = to(concatenate(states) if len(states) > 1 else states[0], "cpu")
        if len(states) > 1:
            state = take(state, torch.tensor([*read, *representations]).argsort())
    return EncodedQueries(state, seen, is_known)


def _read(
    model: Model, reader: QueryReader, queries: Sequence[dict[str, Any]], first: int = 0
) -> tuple[dict[int, Any], dict[int, list[float]]]:
    """Queries as the model reads them, and those that are given by their representations; by their numbers, from
    `first`."""
    own = FORMS[model.form].fields
    takes = dict.fromkeys([*own, *([REPRESENTATION] if model.representation_width else [])])
    read, representations = dict[int, Any](), dict[int, list[float]]()  # by number of the query
    for number, query in enumerate(queries, first):
        where = f"queries[{number}]"
        field = next(name for name in QUERY_FIELDS if query.get(name) is not None)
        if field not in takes:
            raise ValueError(f"{where} must be given by {' or '.join(takes)} for this index, got {field}")
        if field in own:
            read[number] = reader.read(query, where)
        else:
            check_embedding(query[field], model.representation_width or 0, where)
            representations[number] = query[field]
    return read, representations
