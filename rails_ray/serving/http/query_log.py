"""Log of queries, if the operator wants one: queries may be private, so by default none is."""

import logging
from collections.abc import Callable

from rails_ray.schema.requests import SearchRequest
from rails_ray.serving.http.request_ids import current_id

log = logging.getLogger(__name__)


def noting(is_wanted: bool) -> Callable[[str, SearchRequest], None] | None:
    """`note`, into the server's log; None if it is not wanted."""
    if not is_wanted:
        return None
    log.setLevel(logging.INFO)
    return note


def note(version: str, request: SearchRequest) -> None:
    """Log a search with the version that answers and the id of its request, as JSON in a line."""
    log.info("version %s, request %s: %s", version, current_id.get(), request.model_dump_json(exclude_defaults=True))
