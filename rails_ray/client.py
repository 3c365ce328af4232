"""Search over HTTP: the public door of `serving.client`."""

from rails_ray.schema.queries import Query
from rails_ray.schema.responses import ExplainResponse, FeedbackResponse, ItemsResponse, QueryResult, SearchResponse
from rails_ray.serving.client import AsyncClient, Client, explain, index, search

__all__ = [
    "AsyncClient",
    "Client",
    "ExplainResponse",
    "FeedbackResponse",
    "ItemsResponse",
    "Query",
    "QueryResult",
    "SearchResponse",
    "explain",
    "index",
    "search",
]


def __dir__() -> list[str]:
    return __all__
