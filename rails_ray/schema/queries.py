"""A query of a request: one field of a form of queries, and what may stand beside it."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, model_validator

from rails_ray.schema.fields import FeatureNumber, Finite, IdField, TimeField, check_listed
from rails_ray.schema.times import seconds_of

WIDEST = 65_536  # numbers of a vector
MOST_VECTORS = 64  # of a query or an item

ItemList = Annotated[list[IdField], Field(max_length=10_000, fail_fast=True)]
Vector = Annotated[list[Finite], Field(min_length=1, max_length=WIDEST, fail_fast=True)]
NamedVectors = Annotated[dict[str, Vector], Field(min_length=1, max_length=MOST_VECTORS, fail_fast=True)]
Features = Annotated[
    dict[FeatureNumber, Finite],
    Field(max_length=100_000, fail_fast=True, json_schema_extra={"additionalProperties": False}),
]


class Strict(BaseModel):
    """An object that has no other fields than its own."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        """Refuse many unknown fields at once: an error for each of a million would take a gigabyte."""
        if isinstance(given, dict) and len(given) > len(cls.model_fields):
            raise ValueError(f"must have no more than its {len(cls.model_fields)} fields, got {len(given)}")
        return given


def exactly_one(model: BaseModel, names: Sequence[str]) -> None:
    """Raises:
    ValueError: unless one of the fields is given.
    """
    given = [name for name in names if getattr(model, name) is not None]
    if len(given) != 1:
        raise ValueError(f"must have exactly one of {', '.join(names)}, got {' and '.join(given) or 'none'}")


def one_of(names: Sequence[str]) -> ConfigDict:
    """Say it in JSON Schema, where null counts as absent."""
    given: list[JsonValue] = [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]
    return ConfigDict(json_schema_extra={"oneOf": given})


QUERY_FIELDS = ("text", "embedding", "embeddings", "features", "history", "user_id")
"""The fields of which a query has one; each belongs to a form in `data.forms`."""


class QueryInput(Strict):
    """One query, by exactly one of text, embedding, embeddings, features, history and user_id. An index takes some of
    these."""

    model_config = one_of(QUERY_FIELDS)

    text: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
    embedding: Vector | None = Field(
        None,
        description="The representation that the query tower would make, of its width; or, where queries are vectors, "
        "the query itself.",
    )
    embeddings: NamedVectors | None = Field(
        None, description="Vectors by their names, where queries are several vectors: one for each of them."
    )
    features: Features | None = Field(
        None, description="The value of each feature by its number in decimal digits, where queries are features."
    )
    history: ItemList | None = Field(
        None,
        description="Items in time order; ids that the index does not know are ignored, but without a fallback it must "
        "know one.",
    )
    user_id: IdField | None = Field(None, description="A user whose history the index holds.")
    timestamps: Annotated[list[TimeField], Field(max_length=10_000, fail_fast=True)] | None = Field(
        None,
        description="When each item of the history was, not going backwards: numbers since 1970, in seconds or in a "
        "finer unit, which shows by their size, or texts in ISO 8601.",
    )
    exclude_seen: StrictBool | None = Field(
        None,
        description="Whether the search skips the items of the history; by default as the version says, which GET "
        "/v1/index tells.",
    )
    exclude: Annotated[list[IdField], Field(max_length=100_000, fail_fast=True)] = Field(
        default=[],
        description="Items to leave out of the answer; ids unknown to the index are counted in the answer's "
        "num_unknown_excluded.",
    )
    include: Annotated[list[IdField], Field(max_length=100_000, fail_fast=True)] | None = Field(
        None,
        description="The only items that the answer may hold, as far as a filter passes them; by default all. Ids "
        "unknown to the index are counted in the answer's num_unknown_included.",
    )

    after: Annotated[str, Field(min_length=1, max_length=20_000)] | None = Field(
        None,
        description="The `next` of a former answer to this query: the list goes on after its last item.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, QUERY_FIELDS)
        if self.timestamps is not None and self.history is None:
            raise ValueError("must have history beside timestamps, got none")
        if self.timestamps is not None:
            try:
                self.timestamps = list(seconds_of(self.timestamps))
            except ValueError as error:
                raise ValueError(f"must have timestamps that {error}") from None
        return self


Query = str | Iterable[float] | Mapping[str, Any]
"""A text, a vector, or the fields of a `QueryInput`: {"text": "pizza"}, {"history": [1193, 661]}, {"user_id": 42,
"exclude_seen": False}. Without `exclude_seen` the version decides whether items of the history are found."""


def listed_fields(queries: Iterable[Query]) -> list[Any]:
    """`query_fields` of each query.

    Raises:
        ValueError: if there is one query in place of a list.
    """
    check_listed(queries, "queries")
    listed: list[Any] = list(queries)
    if listed and getattr(listed[0], "ndim", None) == 0 and not isinstance(listed[0], str):  # of numpy or torch
        raise ValueError(f"queries must be vectors, got one of {len(listed)} numbers: put it into brackets")
    return [query_fields(query) for query in listed]


def query_fields(query: Query) -> Any:
    """The fields of a query, as a request has them; what is no query, as it is, for the request to refuse."""
    if isinstance(query, str):
        return {"text": query}
    if isinstance(query, Mapping):
        return dict(query)
    if isinstance(query, bytes | bytearray) or not isinstance(query, Iterable):
        return query
    numbers = query.tolist() if hasattr(query, "tolist") else list(query)  # of numpy or torch
    return {
        "embedding": [float(one) if isinstance(one, Real) and not isinstance(one, bool) else one for one in numbers]
    }
