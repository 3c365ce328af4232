"""The JSON of the HTTP API, version 1."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

ItemId = StrictStr | StrictInt
Finite = Annotated[float, Field(allow_inf_nan=False)]
Between0And1 = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _exactly_one(model: BaseModel, what: str) -> None:
    names = list(what.split(", "))
    given = [name for name in names if getattr(model, name) is not None]
    if len(given) != 1:
        raise ValueError(f"must have exactly one of {what}, got {' and '.join(given) or 'none'}")


class QueryInput(_Strict):
    """One query, by exactly one of text, embedding, features, history and user_id, of which an index takes some."""

    text: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
    embedding: Annotated[list[Finite], Field(min_length=1, max_length=65_536)] | None = Field(
        None,
        description="The representation that the query tower would make, of its width; or, where queries are vectors, "
        "the query itself.",
    )
    features: Annotated[dict[int, Finite], Field(max_length=100_000)] | None = Field(
        None, description="Numbers of features and the value of each, where queries are such."
    )
    history: Annotated[list[ItemId], Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="Items in time order; ids that the index does not know are ignored."
    )
    user_id: ItemId | None = Field(None, description="Of a user whose history the index holds.")
    exclude_seen: bool = Field(True, description="Whether the items of the history are passed over by the search.")
    exclude: Annotated[list[ItemId], Field(max_length=100_000)] = Field(
        default=[], description="Items that no answer may hold; ids that the index does not know are ignored."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        _exactly_one(self, "text, embedding, features, history, user_id")
        return self


class CutoffInput(_Strict):
    """How to cut the list, by exactly one of mass, coverage, nucleus, probability, score and top_k."""

    mass: Between0And1 | None = Field(
        None, description="Keep what scores as high as a relevant item does with this probability, going by its tau_q."
    )
    coverage: Between0And1 | None = Field(
        None,
        description="Keep, on average over queries, this share of a query's relevant items, by calibration. The "
        "answer's field `coverage` is another matter: what part of the corpus was searched.",
    )
    nucleus: Between0And1 | None = Field(
        None, description="Keep the fewest items that hold this share of the softmax over all items."
    )
    probability: Between0And1 | None = Field(
        None, description="Keep what holds at least this share, each on its own, of the softmax over all items."
    )
    score: Annotated[float, Field(ge=-1, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    min_items: Annotated[int, Field(ge=0)] = Field(0, description="Keep at least so many, whatever their scores.")
    max_items: Annotated[int, Field(ge=1)] | None = Field(None, description="Keep at most so many; by default k.")
    background: Literal["uniform", "sphere", "fitted"] | None = Field(
        None, description="Of mass: what any item scores; by default uniform."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        _exactly_one(self, "mass, coverage, nucleus, probability, score, top_k")
        if self.max_items is not None and self.min_items > self.max_items:
            raise ValueError(f"must have min_items of at most the {self.max_items} of max_items, got {self.min_items}")
        if self.background is not None and self.mass is None:
            raise ValueError(f"must have a background with mass alone, got {self.background!r} without mass")
        return self

    @property
    def needs_normaliser(self) -> bool:
        """Whether it goes by the softmax over all items, which the shards are asked for first."""
        return self.nucleus is not None or self.probability is not None


class SearchRequest(_Strict):
    queries: Annotated[list[QueryInput], Field(min_length=1)]
    k: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="At most so many items per query; by default what the cut-off says, or else 10 for top_k and 1000 "
        "for cut-offs that go by scores.",
    )
    method: Literal["brute_force", "two_pass", "per_embedding", "average", "combined", "inverted"] = Field(
        "brute_force",
        description="The first two are exact; the others say how far from it an answer can be. An index of items that "
        "are found by codes has brute_force and inverted, any other all but inverted.",
    )
    num_candidates: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Items that `average` and `combined` take by the average component in each shard, and `inverted` "
        "by the buckets looked up, at least k for `average` and `inverted`; by default 1000, or k if that is more.",
    )
    num_per_embedding: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Items that `two_pass`, `per_embedding` and `combined` take by each pair of components in each "
        "shard; by default 50, or k if that is more.",
    )
    num_probes: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Buckets that `inverted` looks up in each chunk; by default 100, or all if there are fewer."
    )
    cutoff: CutoffInput | None = Field(
        None,
        description="By default the deployment's, or else the mass that the index version was published with, or top_k "
        "where it has none.",
    )
    min_coverage: Share = Field(1.0, description="Answer if at least this share of the items could be searched.")


class CertificateResult(BaseModel):
    """
    is_exact: whether the list is proved to be what scoring every item would give.
    gap: how much higher than the end of the list an item that it lacks can score: 0 where it is exact, null where
        nothing is known.
    reason: why nothing is known; null otherwise.
    """

    is_exact: bool
    gap: float | None
    reason: str | None


class QueryResult(BaseModel):
    """
    items, scores: best first, as many as were kept.
    titles: of the items; null where the index has none.
    threshold: the lowest score that is kept, min_items aside; null where only a number of items was asked for.
    num_searched: items that the query could find, those excluded left out.
    num_scored: items whose score was computed.
    is_truncated: whether k or max_items ended the list before the scores fell below the threshold.
    is_short: whether `inverted` found fewer items than were asked for, although there are more.
    is_known: whether the model knows any word or feature of the query; if not, the answer is that to an empty one. Null
        where the model cannot tell.
    """

    items: list[ItemId]
    titles: list[str] | None
    scores: list[float]
    threshold: float | None
    num_kept: int
    num_searched: int
    num_scored: int
    certificate: CertificateResult
    is_truncated: bool
    is_short: bool = False
    is_known: bool | None = None


class Coverage(BaseModel):
    """Of the search: what part of the corpus was looked at. The cut-off of this name is another matter.

    chunks_trained, num_chunks: of a model in chunks, how many there are and should be; null for any other.
    """

    shards_answered: int
    num_shards: int
    items_searched: int
    num_items: int
    chunks_trained: int | None = None
    num_chunks: int | None = None


class SearchResponse(BaseModel):
    """
    is_exact: whether all lists are proved to be exact.
    cutoff: the one applied, with its values: {"mass": 0.99}.
    """

    version: str
    method: str
    is_exact: bool
    cutoff: dict[str, float | int | str]
    coverage: Coverage
    results: list[QueryResult]


class ExplainRequest(_Strict):
    query: QueryInput
    items: Annotated[list[ItemId], Field(min_length=1, max_length=1000)]


class ExplainedItem(BaseModel):
    """score = sum of gates * cosines; both [P_Q][P_X], the gates at least 0 and 1 in sum."""

    item: ItemId
    title: str | None
    score: float
    cosines: list[list[float]]
    gates: list[list[float]]


class ExplainResponse(BaseModel):
    version: str
    items: list[ExplainedItem]


class ErrorResponse(BaseModel):
    """error: one sentence: what must hold, what came."""

    error: str


def sentence(error: dict[str, Any]) -> str:
    """One of pydantic's findings as a sentence: what must hold, what came."""
    where = ""
    for step in error["loc"][1:] if error["loc"][:1] == ("body",) else error["loc"]:
        where += f"[{step}]" if isinstance(step, int) else f".{step}" if where else str(step)
    where = where or "the body"
    context = error.get("ctx", {})
    came = _shorten(error.get("input"))
    match error["type"]:
        case "json_invalid":
            return f"the body must be JSON, got something else: {context.get('error', error['msg'])}"
        case "model_attributes_type" | "model_type" | "dict_type":
            return f"{where} must be a JSON object, got {came}"
        case "missing":
            return f"{where} must be given, got none"
        case "extra_forbidden":
            return f"{where} must not be given, it is no field of this request, got {came}"
        case "value_error":
            return f"{where} {error['msg'].removeprefix('Value error, ')}"
        case "finite_number":
            return f"{where} must be a finite number, got {came}"
        case "too_short" | "string_too_short":
            return f"{where} must have a length of at least {context['min_length']}, got {came}"
        case "too_long" | "string_too_long":
            return f"{where} must have a length of at most {context['max_length']}, got {came}"
        case "int_parsing" | "int_type" | "int_from_float":
            return f"{where} must be an integer, got {came}"
        case _:
            return f"{where} {error['msg'].replace('Input should', 'must', 1)}, got {came}"


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
