"""What was asked, if the operator wants it in the log: queries may be private, so by default none is."""

import logging
from collections.abc import Callable

from rails_ray.answering.schemas import SearchRequest
from rails_ray.web.request_ids import current_id

log = logging.getLogger(__name__)


def noting(is_wanted: bool) -> Callable[[SearchRequest], None] | None:
    """`note`, on standard error, where a cluster keeps what its workers say; None if it is not wanted."""
    if not is_wanted:
        return None
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    return note


def note(request: SearchRequest) -> None:
    """Log a search with the id of its request, as JSON in a line."""
    log.info("request %s: %s", current_id.get(), request.model_dump_json(exclude_defaults=True))
