"""The requests of the HTTP API, version 1."""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from docstring_parser import parse
from pydantic import Field, create_model, model_validator

from rails_ray.schema.fields import LARGEST_INTEGER, LARGEST_NUMBER, Finite, IdField
from rails_ray.schema.filters import FilterInput
from rails_ray.schema.queries import QueryInput, Strict, exactly_one, one_of
from rails_ray.schema.search_params import SearchParams

Between0And1 = Annotated[Finite, Field(gt=0, lt=1)]
Share = Annotated[Finite, Field(ge=0, le=1)]
Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST_INTEGER)]

CutoffKind = Literal["mass", "coverage", "nucleus", "probability", "score", "top_k"]
CUTOFF_KINDS: tuple[CutoffKind, ...] = get_args(CutoffKind)
Method = Literal[
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
]


class CutoffInput(Strict):
    """Where to cut the list, by exactly one of mass, coverage, nucleus, probability, score and top_k."""

    model_config = one_of(CUTOFF_KINDS)

    mass: Between0And1 | None = Field(
        None,
        description="Keep the items from the score on that a relevant item reaches with this probability, by tau_q.",
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
        None,
        description="Keep what scores at least so much: in [-1, 1], unless an index has other scores. "
        "-1 keeps all items but those whose vectors are all zeros.",
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
        exactly_one(self, CUTOFF_KINDS)
        if self.max_items is not None and self.min_items > self.max_items:
            raise ValueError(f"must have min_items of at most the {self.max_items} of max_items, got {self.min_items}")
        if self.background is not None and self.mass is None:
            raise ValueError(f"must have a background with mass alone, got {self.background!r} without mass")
        return self

    @property
    def needs_normaliser(self) -> bool:
        """Return whether the cut-off needs the softmax over all items, a first round to the shards."""
        return self.nucleus is not None or self.probability is not None


class BudgetInput(Strict):
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


Ids = Annotated[
    Literal["stored", "string"],
    Field(
        description="How the answer writes ids of items: as they are stored, or all as strings, as JavaScript rounds "
        "integers above 2^53. Requests may give integer ids in decimal digits, too."
    ),
]


class _Search(Strict):
    queries: Annotated[list[QueryInput], Field(min_length=1, fail_fast=True)]
    k: Count | None = Field(
        None,
        description="Most items of a query. Without a cut-off the list has exactly k items, or all if there are fewer. "
        "By default the number that the cut-off names, else 10 for top_k and 1000 for other cut-offs.",
    )
    method: Method | None = Field(
        None,
        description="By default the version's own, if the request names no search parameter and `rails-ray tune` has "
        "stored one, else brute_force. brute_force and two_pass are exact; the others say how far off an answer can "
        "be. An index of BM25 takes brute_force alone, one of SOLAR's codes also inverted. Any other takes all but "
        "inverted: gated only for a mixture, ann only for a dot product, surrogate only if it was encoded with one, "
        "lookup only if components are stored as codes, and ivf_lookup only if these codes are in lists.",
    )
    cutoff: CutoffInput | None = Field(
        None,
        description="By default the deployment's cut-off, else the mass that the version's calibration, or else its "
        "training, found best, else top_k; such a default keeps at least one item. A request with k and no cut-off "
        "gets its k best items, and the answer's num_kept says how many of them the default would keep.",
    )
    filter: FilterInput | None = Field(
        None,
        description="Which items may be found, by their attributes, which GET /v1/index lists: "
        '{"lang": "fr", "price": {"$lt": 20}}. By default all.',
    )
    fields: Annotated[list[str], Field(max_length=100)] = Field(
        default=[], description="Attributes that the answer tells of each item."
    )
    min_coverage: Share = Field(
        1.0, description="Answer if at least this share of the items could be searched, where shards are apart."
    )
    budget: BudgetInput | None = Field(
        None,
        description="Rerank what the search finds by the heavy ranker of the deployment, within a budget of calls; "
        "only with top_k, of at most as many items as it pays for.",
    )

    fallback: Literal["popular"] | None = Field(
        None,
        description="Answer for a history of which the index knows no item, or a user whom it does not know: `popular` "
        "gives the most popular items: as many as k or top_k, else at most 10. Without it the answer is an error.",
    )
    ids: Ids = "stored"
    group_by: Annotated[str, Field(min_length=1, max_length=1000)] | None = Field(
        None,
        description="An attribute: a list then has at most group_size items of each of its values, and k counts these "
        "groups, best first; items without a value are groups of their own.",
    )
    group_size: Annotated[int, Field(strict=True, ge=1, le=1000)] = Field(
        1, description="Most items of a group, with group_by."
    )
    offset: Annotated[int, Field(strict=True, ge=0, le=LARGEST_INTEGER)] | None = Field(
        None,
        description="Items of each list to pass over. With it, 0 too, each result has a `next` while its list goes on, "
        "which the query of the following page gives as `after`.",
    )


def _param_fields() -> dict[str, Any]:
    """The search parameters as `pydantic.create_model` takes fields: a type and a default each, by name."""
    described = {own.arg_name: own.description for own in parse(SearchParams.__doc__ or "").params}
    found = dict[str, Any]()
    for own in fields(SearchParams):
        limits = Field(strict=True, ge=own.metadata["least"], le=own.metadata["most"] or LARGEST_INTEGER)
        description = " ".join((described[own.name] or "").split())
        found[own.name] = (Annotated[int, limits] | None, Field(None, description=description))
    return found


if TYPE_CHECKING:
    SearchRequest = _Search
else:
    SearchRequest = create_model(
        "SearchRequest",
        __base__=_Search,
        __module__=__name__,
        **_param_fields(),
    )


class ExplainRequest(Strict):
    query: QueryInput
    items: Annotated[list[IdField], Field(min_length=1, max_length=1000, fail_fast=True)]
    ids: Ids = "stored"


class FeedbackRequest(Strict):
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
