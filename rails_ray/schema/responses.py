"""The answers of the HTTP API, version 1."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from rails_ray.schema.fields import IdField


class Response(BaseModel):
    """An answer or a part of one. Its fields are attributes, and items by their names, as in the JSON; `model_dump`
    gives a dictionary. Fields that a later release adds are there too."""

    model_config = ConfigDict(extra="allow")

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None

    def __eq__(self, other: object) -> bool:
        return self.model_dump() == other if isinstance(other, dict) else super().__eq__(other)

    def __contains__(self, name: str) -> bool:
        return name in self.keys()

    def keys(self) -> list[str]:
        return [name for name, _ in self]

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name) if name in self else default


class CertificateResult(Response):
    """
    is_exact: whether the list provably equals the result of scoring every item.
    gap: how far above the end of the list a missing item can score: 0 if the list is exact, null if unknown.
    reason: why the gap is unknown; null otherwise.
    """

    is_exact: bool
    gap: float | None
    reason: str | None


class BudgetResult(Response):
    """
    calls_used: pairs that the heavy ranker scored for this query.
    is_reranked: whether scores and order are the ranker's; otherwise they are the index's.
    reason: why they are not, or why a part of the budget was not spent; null otherwise.
    """

    calls_used: int
    is_reranked: bool
    reason: str | None


class QueryResult(Response):
    """
    items, scores: the items and their scores, best first. A cosine, or a mixture of them, is in [-1, 1]; an item whose
        vector is all zeros has none, comes last, and has a score just below -1.
    titles: titles of the items; null if the index has none.
    fields: the attributes that the request names, of each item; null if it names none.
    threshold: lowest score to keep, apart from min_items; null if the cut-off is a number of items.
    num_kept: number of items that the cut-off keeps. These are the whole list, unless the request named k and no
        cut-off: then the list has the k best items, kept or not.
    num_searched: items that the query could find: those that the filter passes, without the excluded ones.
    num_unknown_excluded: entries of the query's `exclude` that name no item; null if a shard did not answer, or
        the answer is a fallback.
    num_unknown_included: entries of the query's `include` that name no item; null if it has none.
    num_scored: items whose score was computed.
    is_truncated: whether k or max_items ended the list before the scores fell below the threshold.
    is_short: whether the search found fewer items than requested, although more exist.
    is_known: whether the model knows any word or feature of the query. If not, this is the answer to an empty query,
        or the most popular items with their shares of all interactions as scores, if the request has a fallback. Null
        if the model cannot tell.
    is_calibrated: whether a calibration says what the cut-off keeps. False under `include`, and under a filter without
        a calibration of its own, as the calibration measured other items. Null if no calibration says anything of the
        cut-off.
    temperature: tau_q, by which cut-offs by mass and coverage place the threshold; null if it is not trained.
    budget: what the heavy ranker did; null if it was not asked, or failed at the supports.
    error: why there is no list, if the heavy ranker failed at this query alone; null otherwise.
    next: what the query of the next page gives as `after`; null if the list ends, or no page was asked for.
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
    num_unknown_excluded: int | None = None
    num_unknown_included: int | None = None
    is_calibrated: bool | None = None
    fields: list[dict[str, Any]] | None = None
    temperature: float | None = None
    budget: BudgetResult | None = None
    error: str | None = None
    next: str | None = None


class Coverage(Response):
    """Part of the corpus that was searched. Not the cut-off of this name.

    chunks_trained, num_chunks: trained chunks, and all chunks, of a model in chunks; null for other models.
    """

    shards_answered: int
    num_shards: int
    items_searched: int
    num_items: int
    chunks_trained: int | None = None
    num_chunks: int | None = None


class SearchResponse(Response):
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


class ExplainedItem(Response):
    """score = sum of gates * cosines; both `[P_Q][P_X]`; gates are at least 0 and sum to 1. Of components that may be
    shorter than 1, cosines are the inner products. The score of an item whose vector is all zeros is just below -1."""

    item: IdField
    title: str | None
    score: float
    cosines: list[list[float]]
    gates: list[list[float]]


class ExplainResponse(Response):
    version: str
    items: list[ExplainedItem]


class FeedbackResponse(Response):
    """
    cutoff: the cut-off that was judged, as in `SearchResponse`.
    kept: for each query, whether it kept each of the relevant items; null for a query with an error.
    """

    version: str
    cutoff: dict[str, float | int | str]
    kept: list[list[bool] | None]


class ItemsResponse(Response):
    """
    version: the version that is current now; it is stored, whatever becomes of the server.
    num_added: items that were not there before.
    num_replaced: items that have a newer row now.
    num_deleted: items that are gone.
    num_unknown: ids to delete that no item has.
    found_within_s: seconds between two looks of the server at its storage, after which it loads the version; null if it
        does not follow its storage.
    """

    version: str
    num_added: int
    num_replaced: int
    num_deleted: int
    num_unknown: int
    found_within_s: float | None


class ErrorResponse(Response):
    """error: one sentence: what must hold, what came."""

    error: str
