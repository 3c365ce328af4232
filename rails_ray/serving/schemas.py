"""The JSON of the HTTP API, version 1."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, create_model, model_validator

from rails_ray.data.forms import FORMS
from rails_ray.data.forms.fields import LARGEST_INTEGER, LARGEST_NUMBER, FieldDefinition, Finite, IdField
from rails_ray.item_ids import ItemId

Between0And1 = Annotated[Finite, Field(gt=0, lt=1)]
Share = Annotated[Finite, Field(ge=0, le=1)]
Timestamp = Annotated[int, Field(strict=True, ge=0, le=LARGEST_INTEGER)]
Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST_INTEGER)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        """Refuse many unknown fields at once: an error for each of a million would take a gigabyte."""
        if isinstance(given, dict) and len(given) > len(cls.model_fields):
            raise ValueError(f"must have no more than its {len(cls.model_fields)} fields, got {len(given)}")
        return given


def _exactly_one(model: BaseModel, names: Sequence[str]) -> None:
    given = [name for name in names if getattr(model, name) is not None]
    if len(given) != 1:
        raise ValueError(f"must have exactly one of {', '.join(names)}, got {' and '.join(given) or 'none'}")


def _one_of(names: Sequence[str]) -> ConfigDict:
    """Say it in JSON Schema, where null counts as absent."""
    given: list[JsonValue] = [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]
    return ConfigDict(json_schema_extra={"oneOf": given})


ASKED_BY: dict[str, FieldDefinition] = {name: field for form in FORMS.values() for name, field in form.fields.items()}
CUTOFF_FORMS = ("mass", "coverage", "nucleus", "probability", "score", "top_k")


class _Asked(_Strict):
    model_config = _one_of(list(ASKED_BY))

    @model_validator(mode="after")
    def _check(self) -> Self:
        _exactly_one(self, list(ASKED_BY))
        if getattr(self, "timestamps", None) is not None and getattr(self, "history", None) is None:
            raise ValueError("must have history beside timestamps, got none")
        return self


if TYPE_CHECKING:  # for type checkers: the model is assembled below

    class QueryInput(_Asked):
        """One query, by a field of its form."""

        timestamps: list[int] | None
        exclude_seen: bool | None
        exclude: list[ItemId]

else:
    *FIRST, LAST = ASKED_BY
    QueryInput = create_model(
        "QueryInput",
        __base__=_Asked,
        __module__=__name__,
        __doc__=f"One query, by exactly one of {', '.join(FIRST)} and {LAST}. An index takes some of these.",
        **ASKED_BY,
        timestamps=(
            Annotated[list[Timestamp], Field(max_length=10_000, fail_fast=True)] | None,
            Field(None, description="When each item of the history was: seconds since 1970, not going backwards."),
        ),
        exclude_seen=(
            StrictBool | None,
            Field(
                None,
                description="Whether the search skips the items of the history; by default as the version says, which "
                "GET /v1/index tells.",
            ),
        ),
        exclude=(
            Annotated[list[IdField], Field(max_length=100_000, fail_fast=True)],
            Field(default=[], description="Items to leave out of the answer; ids unknown to the index are ignored."),
        ),
    )


class CutoffInput(_Strict):
    """Where to cut the list, by exactly one of mass, coverage, nucleus, probability, score and top_k."""

    model_config = _one_of(CUTOFF_FORMS)

    mass: Between0And1 | None = Field(
        None, description="Keep items that score as high as a relevant item does with this probability, by tau_q."
    )
    coverage: Between0And1 | None = Field(
        None,
        description="Keep this share of a query's relevant items, on average over queries, by calibration. Not the "
        "answer's field `coverage`, which says what part of the corpus was searched.",
    )
    nucleus: Between0And1 | None = Field(
        None, description="Keep the fewest items that hold this share of the softmax over all items."
    )
    probability: Between0And1 | None = Field(
        None, description="Keep each item that holds at least this share of the softmax over all items."
    )
    score: Annotated[Finite, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)] | None = Field(
        None, description="Keep what scores at least so much: in [-1, 1], unless an index has other scores."
    )
    top_k: Count | None = None
    min_items: Annotated[int, Field(strict=True, ge=0, le=LARGEST_INTEGER)] = Field(
        0, description="Keep at least this many items, whatever their scores."
    )
    max_items: Count | None = Field(None, description="Keep at most this many items; by default k.")
    background: Literal["uniform", "sphere", "fitted", "held_out"] | None = Field(
        None,
        description="Distribution assumed for the score of any item; only with mass; by default held_out in a version "
        "whose calibration has fitted it, and uniform in others.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        _exactly_one(self, CUTOFF_FORMS)
        if self.max_items is not None and self.min_items > self.max_items:
            raise ValueError(f"must have min_items of at most the {self.max_items} of max_items, got {self.min_items}")
        if self.background is not None and self.mass is None:
            raise ValueError(f"must have a background with mass alone, got {self.background!r} without mass")
        return self

    @property
    def needs_normaliser(self) -> bool:
        """Return whether the cut-off needs the softmax over all items, a first round to the shards."""
        return self.nucleus is not None or self.probability is not None


class BudgetInput(_Strict):
    """How often a query may call the heavy ranker. An index of RBE spends some calls on the query itself; what is left
    reranks what the search finds."""

    calls: Count = Field(description="Pairs of the query and an item that the ranker may score.")
    deadline_ms: Annotated[Finite, Field(gt=0, le=LARGEST_NUMBER)] | None = Field(
        None,
        description="Milliseconds after which the list is answered in the order of the index, or, if the supports are "
        "not scored by then, the query has an error; by default, and at most, what the deployment allows.",
    )
    rounds: Annotated[int, Field(strict=True, ge=1, le=100)] = Field(
        1,
        description="Rounds that the reranking is split into. Each begins with a search by a vector that was corrected "
        "by the scores so far (AXN); only for an index with one vector per item.",
    )


class SearchRequest(_Strict):
    queries: Annotated[list[QueryInput], Field(min_length=1, fail_fast=True)]
    k: Count | None = Field(
        None,
        description="Most items per query, and without a cut-off just so many, as far as there are; by default the "
        "cut-off's number, or else 10 for top_k and 1000 for cut-offs by score.",
    )
    method: Literal[
        "brute_force",
        "two_pass",
        "per_embedding",
        "average",
        "combined",
        "gated",
        "ann",
        "surrogate",
        "lookup",
        "ivf_lookup",
        "inverted",
    ] = Field(
        "brute_force",
        description="The first two are exact; the others say how far off an answer can be. An index of SOLAR's codes "
        "takes brute_force and inverted. Any other takes all but inverted, gated only for a mixture, ann only for a "
        "dot product, surrogate only if it was encoded with one, lookup only if components are stored as codes, and "
        "ivf_lookup only if these are in lists.",
    )
    num_candidates: Count | None = Field(
        None,
        description="Items that `average`, `combined` and `ann` take in each shard by the average component, "
        "`surrogate` by its vectors, `gated` in all rounds, `lookup` and `ivf_lookup` by codes, and `inverted` by "
        "buckets. At least k, but for `combined`; by default 1000, or k if that is more.",
    )
    num_per_embedding: Count | None = Field(
        None,
        description="Items that `two_pass`, `per_embedding` and `combined` take in each shard for each pair of "
        "components; by default 50, or k if that is more.",
    )
    num_rounds: Annotated[int, Field(strict=True, ge=2, le=100)] | None = Field(
        None,
        description="Rounds that `gated` splits its candidates into; by default 3. A further one finds more, and takes "
        "another scan.",
    )
    num_probes: Count | None = Field(
        None, description="Buckets that `inverted` looks up in each chunk; by default 100, or all if there are fewer."
    )
    nprobe: Count | None = Field(
        None,
        description="Lists that `ivf_lookup` or an index of kind ivf scans; by default the root of their number.",
    )
    ef_search: Count | None = Field(
        None, description="Items in the beam of an index of kind hnsw; by default 64, and at least as many as it finds."
    )
    cutoff: CutoffInput | None = Field(
        None,
        description="By default the deployment's cut-off, else the mass that the version was published with, else "
        "top_k; it keeps one item at least. A request that names k alone gets its k best: the answer's num_kept then "
        "tells how many of them this cut-off would keep.",
    )
    min_coverage: Share = Field(1.0, description="Answer if at least this share of the items could be searched.")
    budget: BudgetInput | None = Field(
        None,
        description="Rerank what the search finds by the heavy ranker of the deployment, within a budget of calls; "
        "only with top_k, of at most as many items as it pays for.",
    )


class CertificateResult(BaseModel):
    """
    is_exact: whether the list provably equals the result of scoring every item.
    gap: how far above the end of the list a missing item can score: 0 if the list is exact, null if unknown.
    reason: why the gap is unknown; null otherwise.
    """

    is_exact: bool
    gap: float | None
    reason: str | None


class BudgetResult(BaseModel):
    """
    calls_used: pairs that the heavy ranker scored for this query.
    is_reranked: whether scores and order are the ranker's; otherwise they are the index's.
    reason: why they are not, or why a part of the budget was not spent; null otherwise.
    """

    calls_used: int
    is_reranked: bool
    reason: str | None


class QueryResult(BaseModel):
    """
    items, scores: the items and their scores, best first.
    titles: titles of the items; null if the index has none.
    threshold: lowest score to keep, apart from min_items; null if the cut-off is a number of items.
    num_kept: items that the cut-off keeps: all of them, but of a request that named k and no cut-off, which lists its
        k best whether they are kept or not.
    num_searched: items that the query could find, without the excluded ones.
    num_scored: items whose score was computed.
    is_truncated: whether k or max_items ended the list before the scores fell below the threshold.
    is_short: whether the search found fewer items than requested, although more exist.
    is_known: whether the model knows any word or feature of the query. If not, this is the answer to an empty query.
        Null if the model cannot tell.
    temperature: tau_q, by which cut-offs by mass and coverage place the threshold; null if it is not trained.
    budget: what the heavy ranker did; null if it was not asked, or failed at the supports.
    error: why there is no list, if the heavy ranker failed at this query alone; null otherwise.
    """

    items: list[IdField]
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
    temperature: float | None = None
    budget: BudgetResult | None = None
    error: str | None = None


class Coverage(BaseModel):
    """Part of the corpus that was searched. Not the cut-off of this name.

    chunks_trained, num_chunks: trained chunks, and all chunks, of a model in chunks; null for other models.
    """

    shards_answered: int
    num_shards: int
    items_searched: int
    num_items: int
    chunks_trained: int | None = None
    num_chunks: int | None = None


class SearchResponse(BaseModel):
    """
    is_exact: whether all lists are provably exact.
    cutoff: the cut-off that `threshold` and `num_kept` are of, with its values: {"mass": 0.99, "min_items": 1}.
    """

    version: str
    method: str
    is_exact: bool
    cutoff: dict[str, float | int | str]
    coverage: Coverage
    results: list[QueryResult]


class ExplainRequest(_Strict):
    query: QueryInput
    items: Annotated[list[IdField], Field(min_length=1, max_length=1000, fail_fast=True)]


class ExplainedItem(BaseModel):
    """score = sum of gates * cosines; both [P_Q][P_X]; gates are at least 0 and sum to 1."""

    item: IdField
    title: str | None
    score: float
    cosines: list[list[float]]
    gates: list[list[float]]


class ExplainResponse(BaseModel):
    version: str
    items: list[ExplainedItem]


class FeedbackRequest(_Strict):
    """
    search: a search as it was asked, without a budget and of the whole corpus.
    relevant: for each of its queries, the items that turned out to be relevant, whether they were found or not.
    """

    search: SearchRequest
    relevant: Annotated[
        list[Annotated[list[IdField], Field(min_length=1, max_length=1000, fail_fast=True)]], Field(fail_fast=True)
    ]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.search.budget is not None:
            raise ValueError("must have a search without budget, got one")
        if self.search.min_coverage != 1:
            raise ValueError(f"must have a search of all items, got one with min_coverage {self.search.min_coverage:g}")
        if len(self.relevant) != len(self.search.queries):
            raise ValueError(
                f"must have relevant items for each of the {len(self.search.queries)} queries of its search, got "
                f"{len(self.relevant)} lists"
            )
        return self


class FeedbackResponse(BaseModel):
    """
    cutoff: the cut-off that was judged, as in `SearchResponse`.
    kept: for each query, whether it kept each of the relevant items; null for a query with an error.
    """

    version: str
    cutoff: dict[str, float | int | str]
    kept: list[list[bool] | None]


class ErrorResponse(BaseModel):
    """error: one sentence: what must hold, what came."""

    error: str
