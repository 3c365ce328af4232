"""Hook that Ray calls in each process that listens for HTTP, before it makes its server (`environment` names it): its
proxy in Python, or the routers themselves where HAProxy asks them.

RAILS_RAY_MAX_PASSED says how many questions the proxy passes on at once, where `max_requests` or the number of routers
is larger than usual. It imports no torch, which a proxy has no use for.
"""

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from ray import serve as ray_serve
from ray.serve.exceptions import RayServeException
from starlette.middleware import Middleware

from rails_ray.on_ray.serving.instruments import RayMetrics
from rails_ray.serving.http import header_timeout as slow_headers
from rails_ray.serving.http.access import Access
from rails_ray.serving.http.admission import AdmissionControl
from rails_ray.serving.http.bodies import MAX_WAITING_BYTES
from rails_ray.serving.http.limits import MAX_REQUESTS
from rails_ray.serving.http.origins import AllowedOrigins
from rails_ray.serving.instruments import Instrument

VARIABLE = "RAILS_RAY_MAX_PASSED"
REFUSED = ("rails_ray_refused", "requests that a proxy refused itself", ("path", "status"))
ANY_BODY = MAX_WAITING_BYTES  # of all bodies on their way; routers, who know keys and limits, refuse smaller ones


def bound() -> list[Any]:
    """Bound what clients may take of this process; returns middleware for its server."""
    slow_headers.bound()
    of_proxy = Access(None, ANY_BODY, most_passed())
    return [  # the last is the outermost
        Middleware(AdmissionControl, access=lambda: _access(of_proxy), on_refusal=_count),
        Middleware(AllowedOrigins, origins=_origins),
    ]


def most_passed() -> int:
    """How many questions a proxy passes on at once.

    Raises:
        ValueError: if the variable is no number of places.
    """
    given = os.environ.get(VARIABLE, str(MAX_REQUESTS))
    if not (given.isascii() and given.isdigit() and int(given[:9])):
        raise ValueError(f"{VARIABLE} must be a whole number of requests, at least 1, got {given!r}: set it again")
    return int(given[:9])


def _router() -> Any:
    """This process's router; None if it has none, or not yet. A replica of another application has none, and is bounded
    as a proxy is."""
    try:
        found = ray_serve.get_replica_context().servable_object
    except RayServeException:
        return None
    return found if isinstance(getattr(found, "access", None), Access) else None


def _access(of_proxy: Access) -> Access:
    router = _router()
    found: Access = of_proxy if router is None else router.access
    return found


def _origins() -> Sequence[str]:
    return getattr(_router(), "allowed_origins", ())


def _count(path: str, status: int) -> None:
    router = _router()
    if router is None:
        _refused()(1, path=path, status=str(status))
    else:
        router.traffic.metrics.request(path, status)


@cache
def _refused() -> Instrument:
    return RayMetrics().counter(*REFUSED)
