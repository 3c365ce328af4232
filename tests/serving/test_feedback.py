"""Coverage by what clients report, beside what cut-offs promise."""

from typing import Any

import pytest
from pydantic import ValidationError

from rails_ray.schema.requests import FeedbackRequest, SearchRequest
from rails_ray.schema.responses import CertificateResult, Coverage, FeedbackResponse, QueryResult, SearchResponse
from rails_ray.serving.cutoffs import MOST_ITEMS
from rails_ray.serving.engine import Answered
from rails_ray.serving.feedback import Feedback, Judged
from rails_ray.serving.request_limits import Limits
from rails_ray.serving.running_means import RunningMean

FOUND = {"a": ["1", "2", "3"], "b": ["4"], "none": []}


def request_of(relevant: dict[str, list[str]], **search: Any) -> FeedbackRequest:
    queries = [{"text": text} for text in relevant]
    body = {"search": {"queries": queries, **search}, "relevant": list(relevant.values())}
    return FeedbackRequest.model_validate(body)


def search(request: SearchRequest) -> Answered:
    """Finds `FOUND`; a query that it does not know has an error."""
    assert request.min_coverage == 1
    facts: dict[str, Any] = {"titles": None, "scores": [], "threshold": None, "num_searched": 9}
    certificate = CertificateResult(is_exact=True, gap=0.0, reason=None)
    facts |= {"num_scored": 9, "is_truncated": False, "certificate": certificate}
    texts = [str(query.model_dump()["text"]) for query in request.queries]
    errors = [None if text in FOUND else "the ranker failed" for text in texts]
    results = [
        QueryResult(
            items=[*FOUND.get(text, []), "below the cut-off"], num_kept=len(FOUND.get(text, [])), error=error, **facts
        )
        for text, error in zip(texts, errors, strict=True)
    ]
    coverage = Coverage(shards_answered=1, num_shards=1, items_searched=9, num_items=9)
    cutoff: dict[str, Any] = {} if request.cutoff is None else request.cutoff.model_dump(exclude_defaults=True)
    head = SearchResponse(
        version="v", method="brute_force", is_exact=True, cutoff=cutoff, coverage=coverage, results=[]
    )
    return Answered(head, iter(results), 2 * len(results))


def judged(feedback: Feedback, request: FeedbackRequest, sizes: list[int] | None = None) -> FeedbackResponse:
    """A report and its searches; their numbers of queries."""
    answers = [search(part) for part, _ in feedback.searches(request)]
    results = [list(answer.results) for answer in answers]
    if sizes is not None:
        sizes += map(len, results)
    return feedback.judge(request, answers[-1].head, [own for part in results for own in part])


def test_coverage_is_the_mean_over_queries_of_the_share_that_was_kept() -> None:
    reports = list[Judged]()
    feedback = Feedback(Limits(), reports.append)
    first = request_of({"a": ["1", "9"], "b": ["4"]}, cutoff={"coverage": 0.8})
    second = request_of({"none": ["1"], "failed": ["1"]}, cutoff={"coverage": 0.5})
    answers = [judged(feedback, request) for request in (first, second)]
    assert [answer.kept for answer in answers] == [[[True, False], [True]], [[False], None]]
    assert reports == [
        Judged(RunningMean(2, 1.5), RunningMean(2, 1.6)),
        Judged(RunningMean(3, 1.5), RunningMean(3, 2.1)),
    ]
    facts = feedback.judged.to_dict()
    assert (facts["num_queries"], facts["coverage"], facts["promised"]) == (3, 0.5, pytest.approx(0.7))
    assert facts["low"] < 0.5 < facts["high"]


def test_what_is_listed_below_the_cut_off_was_not_kept() -> None:
    answer = judged(Feedback(Limits()), request_of({"a": ["below the cut-off"]}, k=9))
    assert answer.kept == [[False]]


def test_what_is_reported_twice_counts_once() -> None:
    feedback = Feedback(Limits())
    answer = judged(feedback, request_of({"a": ["1", "1", "1", "9"]}, cutoff={"coverage": 0.8}))
    assert answer.kept == [[True, True, True, False]]
    assert feedback.judged.to_dict()["coverage"] == 0.5


def test_a_report_of_many_queries_has_the_lists_of_single_ones() -> None:
    asked = list[int]()

    relevant = {"a": ["1"], "none": ["1"], "b": ["4"], "failed": ["1"], "fails": ["2"]}
    request = request_of(relevant, cutoff={"coverage": 0.8})
    whole = judged(Feedback(Limits()), request)
    parts = judged(Feedback(Limits(max_answered_items=2 * MOST_ITEMS)), request, asked)
    assert asked == [2, 2, 1]
    assert parts == whole
    with pytest.raises(ValueError, match="queries must have a length of at most 4, got 5"):
        judged(Feedback(Limits(max_queries=4)), request)


def test_a_sentence_names_a_query_by_its_place_in_the_report() -> None:
    request = request_of({"a": ["1"], "none": ["1"], "b": ["4"], "c": ["1"], "d": ["2"]})
    found = list[str]()
    for _, named in Feedback(Limits(max_answered_items=2 * MOST_ITEMS)).searches(request):
        with pytest.raises(ValueError, match="must be known") as refused, named:
            raise ValueError("queries[0].user_id must be known, got queries[0]")
        found.append(str(refused.value))
    assert found == [f"search.queries[{n}].user_id must be known, got queries[0]" for n in (0, 2, 4)]


def test_a_cutoff_that_promises_no_coverage_is_answered_and_not_counted() -> None:
    reports = list[Judged]()
    feedback = Feedback(Limits(), reports.append)
    answer = judged(feedback, request_of({"a": ["2"]}, cutoff={"top_k": 3}))
    assert (answer.kept, answer.cutoff, reports) == ([[True]], {"top_k": 3}, [])
    assert feedback.judged.to_dict() == dict.fromkeys(("coverage", "low", "high", "promised")) | {"num_queries": 0}


@pytest.mark.parametrize(
    ("search_fields", "relevant", "message"),
    [
        ({}, [], "must have relevant items for each of the 1 queries of its search, got 0 lists"),
        ({}, [["1"], ["2"]], "must have relevant items for each of the 1 queries of its search, got 2 lists"),
        ({"budget": {"calls": 3}}, [["1"]], "must have a search without budget, got one"),
        ({"min_coverage": 0.5}, [["1"]], "must have a search of all items, got one with min_coverage 0.5"),
        ({}, [[]], "at least 1"),
    ],
)
def test_a_report_that_fits_no_search(search_fields: dict[str, Any], relevant: Any, message: str) -> None:
    body = {"search": {"queries": [{"text": "a"}], **search_fields}, "relevant": relevant}
    with pytest.raises(ValidationError, match=message):
        FeedbackRequest.model_validate(body)
