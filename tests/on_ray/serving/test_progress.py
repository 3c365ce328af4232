"""How long an application that starts is waited for: as long as it makes progress, whatever that takes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest
from ray import serve as ray_serve
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    DeploymentStatusTrigger,
    ProxyStatus,
    ServeStatus,
)

from rails_ray.errors import UnavailableError
from rails_ray.on_ray.serving import app
from rails_ray.on_ray.serving.plan import NAME
from rails_ray.on_ray.serving.starting import STALL_S, ProgressWatch, picture, still_missing
from support.clocks import clock_of


def status_of(
    replicas: Mapping[str, Mapping[str, int]],
    *,
    status: str = "DEPLOYING",
    messages: Mapping[str, str] | None = None,
    proxy: str = "HEALTHY",
) -> ServeStatus:
    """Serve's status with the replicas of each deployment by their state, which Serve gives as text."""
    deployments = {
        name: DeploymentStatusOverview(
            status=DeploymentStatus.HEALTHY if set(states) == {"RUNNING"} else DeploymentStatus.UPDATING,
            status_trigger=DeploymentStatusTrigger.CONFIG_UPDATE_STARTED,
            replica_states=dict(states),
            message=(messages or {}).get(name, ""),
        )
        for name, states in replicas.items()
    }
    application = ApplicationStatusOverview(ApplicationStatus(status), "", 0.0, deployments)
    return ServeStatus(proxies={"node": ProxyStatus(proxy)}, applications={NAME: application})


def seen(status: ServeStatus) -> Any:
    return picture(status, status.applications[NAME])


STARTING = {"Router": {"STARTING": 1}, "Shard000": {"STARTING": 1}, "Shard001": {"STARTING": 1}}
HALF = STARTING | {"Router": {"RUNNING": 1}}
ALL = {name: {"RUNNING": 1} for name in STARTING}


def test_the_wait_is_over_only_after_a_while_without_progress() -> None:
    watch = ProgressWatch(120, clock_of(0, 1, 100, 219, 220))
    assert not watch.is_stalled("one")
    assert not watch.is_stalled("two")
    assert not watch.is_stalled("two"), "119 s after the last progress"
    assert watch.is_stalled("two"), "120 s after it"


def test_a_state_that_was_there_before_is_no_progress() -> None:
    watch = ProgressWatch(120, clock_of(0, 0, 50, 100, 150, 171))
    found = [watch.is_stalled(state) for state in ("starting", "failed", "starting", "failed", "starting")]
    assert found == [False, False, False, False, True]


def test_nothing_new_from_the_start_is_a_stall_too() -> None:
    watch = ProgressWatch(120, clock_of(0, 0, 120))
    assert [watch.is_stalled(None), watch.is_stalled(None)] == [False, True]


@pytest.mark.parametrize(
    "changed",
    [
        status_of(HALF),
        status_of(STARTING | {"Shard002": {"STARTING": 1}}),
        status_of(STARTING | {"Shard001": {"STARTING": 2}}),
        status_of(STARTING, status="RUNNING"),
        status_of(STARTING, messages={"Router": "1 replicas have taken more than 30s to initialize"}),
        status_of(STARTING, proxy="STARTING"),
    ],
)
def test_every_change_that_serve_shows_is_progress(changed: ServeStatus) -> None:
    assert seen(status_of(STARTING)) == seen(status_of(STARTING))
    assert seen(changed) != seen(status_of(STARTING))


def test_the_free_resources_of_a_cluster_that_others_use_are_no_progress() -> None:
    def waiting(available: str) -> ServeStatus:
        needs = "Resources required for each replica: {'CPU': 1}, "
        return status_of(STARTING, messages={"Router": f"{needs}total resources available: {available}."})

    assert seen(waiting("{'CPU': 0.5}")) == seen(waiting("{'CPU': 0.25}"))


def test_what_is_missing_is_said_by_deployment() -> None:
    half = STARTING | {"Router": {"RUNNING": 1, "STARTING": 1}, "Shard000": {}, "Shard001": {"RUNNING": 2}}
    assert still_missing(status_of(half).applications[NAME]) == "Router: 1 STARTING; Shard000: none yet"
    assert still_missing(status_of(ALL).applications[NAME]) == ""


Start = Callable[..., None]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Waits for an application whose status changes at given seconds; a look takes no time, a pause its own."""

    def started(changes: Mapping[float, ServeStatus], answers: Iterator[int | None]) -> None:
        now = 0.0

        def clock() -> float:
            return now

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

        def get(url: str, **options: Any) -> httpx.Response:
            answer = next(answers)
            if answer is None:
                raise httpx.ConnectError("nobody listens")
            return httpx.Response(answer)

        monkeypatch.setattr(app.time, "sleep", sleep)
        monkeypatch.setattr(ray_serve, "status", lambda: changes[max(at for at in changes if at <= now)])
        monkeypatch.setattr(httpx, "get", get)
        app._wait_until_healthy("http://127.0.0.1:8000", ProgressWatch(STALL_S, clock))

    return started


def test_an_application_that_deploys_for_longer_than_the_limit_is_waited_for_while_it_makes_progress(
    start: Start,
) -> None:
    """At a load of 50 the last replica was there after 128 s."""
    two = HALF | {"Shard000": {"RUNNING": 1}}
    changes = {0: status_of(STARTING), 90: status_of(HALF), 128: status_of(two), 240: status_of(ALL, status="RUNNING")}
    start(changes, iter([None, 503, 401]))


def test_an_application_that_hangs_is_given_up_and_what_is_missing_is_said(start: Start) -> None:
    message = (
        r"the application must make progress until it answers, got none for 120 s in status DEPLOYING "
        r"\(Shard000: 1 STARTING; Shard001: 1 STARTING\): check that the cluster has room for all shards"
    )
    with pytest.raises(UnavailableError, match=f"^{message}$"):
        start({0: status_of(STARTING), 50: status_of(HALF)}, iter([]))


def test_an_application_that_runs_and_does_not_answer_is_given_up(start: Start) -> None:
    message = r"got none for 120 s in status RUNNING \(answer at http://127\.0\.0\.1:8000: 503\)"
    with pytest.raises(UnavailableError, match=message):
        start({0: status_of(ALL, status="RUNNING")}, iter([503] * 700))


def test_a_deployment_that_fails_is_not_waited_for(start: Start) -> None:
    messages = {"Router": "Retrying.\nrails_ray.errors.NotFoundError: there must be a version, got none"}
    with pytest.raises(UnavailableError, match="must start, got: there must be a version, got none"):
        start({0: status_of(STARTING, messages=messages)}, iter([]))
