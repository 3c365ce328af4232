"""What is bounded in each process that listens for HTTP."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray import serve as ray_serve
from starlette.applications import Starlette
from starlette.middleware import Middleware

from rails_ray.on_ray.serving import listening
from rails_ray.serving.http.access import Access
from rails_ray.serving.http.admission import AdmissionControl
from rails_ray.serving.http.keys import Keys
from rails_ray.serving.http.limits import MAX_REQUESTS
from rails_ray.serving.http.origins import AllowedOrigins

PAGE = "https://shop.example"


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the middleware of this process is made with."""
    monkeypatch.setattr(listening.slow_headers, "bound", lambda: None)
    found, of_origins = listening.bound()
    assert of_origins.cls is AllowedOrigins
    assert isinstance(found, Middleware)
    assert found.cls is AdmissionControl
    return dict(found.kwargs)


def test_a_proxy_passes_on_as_many_as_a_router_has_places_for(crowd: dict[str, Any]) -> None:
    access = crowd["access"]()
    assert (access.keys, access.max_requests) == (None, MAX_REQUESTS)


def test_a_router_has_its_own_rules_and_counts_what_is_refused_in_front_of_it(
    crowd: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = list[tuple[str, int]]()
    metrics = SimpleNamespace(request=lambda path, status: counted.append((path, status)))
    own = Access(Keys(()), 5000, 200)
    router = SimpleNamespace(access=own, traffic=SimpleNamespace(metrics=metrics))
    context = SimpleNamespace(servable_object=None)
    monkeypatch.setattr(ray_serve, "get_replica_context", lambda: context)
    assert crowd["access"]().max_requests == MAX_REQUESTS  # it is still being made
    context.servable_object = router
    assert crowd["access"]() is own, "with its keys"
    crowd["on_refusal"]("/v1/search", 429)
    assert counted == [("/v1/search", 429)]


def test_a_router_answers_a_preflight_before_it_asks_for_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening.slow_headers, "bound", lambda: None)
    metrics = SimpleNamespace(request=lambda path, status: None)
    router = SimpleNamespace(
        access=Access(Keys(()), 5000, 200), allowed_origins=[PAGE], traffic=SimpleNamespace(metrics=metrics)
    )
    monkeypatch.setattr(ray_serve, "get_replica_context", lambda: SimpleNamespace(servable_object=router))
    app: Any = Starlette()
    for middleware in listening.bound():  # as Ray puts them around its server
        app = middleware.cls(app, **middleware.kwargs)

    async def answered() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            asked = {"origin": PAGE, "access-control-request-method": "POST"}
            preflight = await client.options("/v1/search", headers=asked)
            return [preflight, await client.post("/v1/search", headers={"origin": PAGE}, json={})]

    preflight, refused = asyncio.run(answered())
    assert (preflight.status_code, refused.status_code) == (200, 401)
    assert preflight.headers["access-control-allow-origin"] == refused.headers["access-control-allow-origin"] == PAGE


def test_another_application_is_left_alone(crowd: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its paths may end as ours do."""
    context = SimpleNamespace(servable_object=SimpleNamespace(access="of its own"))
    monkeypatch.setattr(ray_serve, "get_replica_context", lambda: context)
    assert crowd["access"]().max_requests == MAX_REQUESTS


@pytest.mark.parametrize("told", ["", "0", "-1", "1e3", "many", "٣"])
def test_a_number_of_places_that_is_none(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(listening.VARIABLE, told)
    with pytest.raises(ValueError, match=f"RAILS_RAY_MAX_PASSED must be a whole number of requests, .*, got '{told}'"):
        listening.bound()


def test_a_proxy_imports_no_torch() -> None:
    code = "import sys, rails_ray.on_ray.serving.listening; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
