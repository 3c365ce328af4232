"""Answers as a server gives them."""

from typing import Any

from rails_ray.schema.responses import CertificateResult, Coverage, QueryResult, SearchResponse


def search_response(**fields: Any) -> SearchResponse:
    """The answer to one query, with these fields of its result."""
    usual: dict[str, Any] = {
        "items": [1],
        "titles": None,
        "scores": [0.5],
        "threshold": None,
        "num_kept": 1,
        "num_searched": 9,
        "num_scored": 9,
        "certificate": CertificateResult(is_exact=False, gap=None, reason="a reason"),
        "is_truncated": False,
    }
    return SearchResponse(
        version="v",
        method="average",
        is_exact=False,
        cutoff={"top_k": 4},
        coverage=Coverage(shards_answered=1, num_shards=1, items_searched=9, num_items=9),
        results=[QueryResult(**usual | fields)],
    )
