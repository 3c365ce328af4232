"""Search over HTTP: the public door of `serving.client`."""

from rails_ray.serving.client import (
    Answer,
    AsyncClient,
    Client,
    ExplainedItem,
    Explanation,
    Found,
    Judged,
    Query,
    explain,
    index,
    search,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "ExplainedItem",
    "Explanation",
    "Found",
    "Judged",
    "Query",
    "explain",
    "index",
    "search",
]
