"""The application: a router, and a deployment per shard unless routers hold them.

No annotation of `build` may be a string: Ray reads it to parse the arguments.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import ray
from ray import serve as ray_serve
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, LoggingConfig

from rails_ray.allowed_code import AllowedCode
from rails_ray.errors import UnavailableError
from rails_ray.families.served_family import ServedFamily
from rails_ray.families.version import Version
from rails_ray.on_ray.nodes import check_shared
from rails_ray.on_ray.serving.items import ItemChanger
from rails_ray.on_ray.serving.listening import most_passed
from rails_ray.on_ray.serving.plan import (
    ITEMS,
    NAME,
    RANKER,
    DeploymentSize,
    ServeArgs,
    deployments,
    http_options,
    shard_name,
)
from rails_ray.on_ray.serving.ranker import Ranker
from rails_ray.on_ray.serving.router import Router
from rails_ray.on_ray.serving.shard import Shard
from rails_ray.on_ray.serving.starting import ProgressWatch, picture, still_missing
from rails_ray.schema.deployment import RankerArgs
from rails_ray.serving.cutoffs import NO_CALIBRATION, Cutoffs
from rails_ray.serving.http.keys import KeysFile
from rails_ray.serving.http.ports import check_port
from rails_ray.serving.search_defaults import NO_SEARCH, SearchDefaults
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.leases import Lease

ANSWER_TIMEOUT_S = 120.0  # for the first answer of an application whose replicas run
LOOK_S = 0.2  # between two looks at an application that starts
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
NUM_STARTS = 3  # tries to start Ray Serve: it kills proxies that are not ready in time


def build(args: ServeArgs) -> Application:
    """The application for one index version; the manifest says how many shards it has.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if its manifest cannot be read.
        UnsupportedError: if the version lacks what the default cut-off in `args` needs.
        ValueError: if the version's config names code that is not allowed, or a node does not find a local path.
    """
    return application(args, DeploymentSize())


def application(args: ServeArgs, placement: DeploymentSize) -> Application:
    """Build with given replicas and reservations; raises what `build` does."""
    allowed, store = AllowedCode.given(args.allow_code), Storage(args.storage)
    check_shared(str(store), [args.keys_file, args.ranker.folder if args.ranker else None])
    version = Version.published(store, args.version, allowed)
    own, storage = version.family, str(version.storage)
    names_another = args.ranker is not None and args.ranker.path != own.ranker.path
    own.check_code(has_ranker=names_another)
    if args.ranker is not None and names_another:  # not by the version: the deployment names it
        allowed = allowed.also(args.ranker.path)
    pinned: dict[str, Any] = {
        "storage": storage,
        "version": version.name,
        "ranker": args.ranker or ranker_of_family(own),
        "allow_code": list(allowed.named),
    }
    if args.follow_s is None:
        of_filters = args.filter_calibrations
        pinned |= {
            "calibration": args.calibration or version.tuned.calibration or NO_CALIBRATION,
            "filter_calibrations": list(version.tuned.of_filters) if of_filters is None else of_filters,
            "search": args.search or version.tuned.search or NO_SEARCH,
        }
    args = args.model_copy(update=pinned)  # so that later replicas serve the same
    # Raises if the default cut-off or search cannot work, before anything starts.
    Cutoffs.read(
        version,
        default=args.cutoff,
        calibration=args.calibration,
        filter_calibrations=args.filter_calibrations,
    )
    SearchDefaults.read(version, args.search)
    Lease(version.storage, lambda: version.name).look()  # until the routers have leases of their own
    num_shards = args.num_deployed(version.num_shards)
    options = deployments(placement, num_shards, args.ranker, changes_items=args.change_items)
    classes: tuple[Any, Any, Any, Any] = Shard, Router, Ranker, ItemChanger  # the decorator's result has no usable type
    shard_search, router, ranker, items = classes
    shards = [
        shard_search.options(name=name, **options[name]).bind(storage, version.name, shard, args.follow_s is not None)
        for shard, name in enumerate(map(shard_name, range(num_shards)))
    ]
    ranking = None
    if args.ranker is not None:
        own_args = args.ranker.path, args.ranker.folder, args.ranker.concurrency, args.ranker.timeout_s
        ranking = ranker.options(name=RANKER, **options[RANKER]).bind(
            *own_args, allowed.read_by(f"version {version.name}", storage)
        )
    changing = None
    if args.change_items:
        changing = items.options(**options[ITEMS]).bind(storage, args.allow_code, args.follow_s)
    made: Application = router.options(**options["Router"]).bind(shards, args, ranking, changing)
    return made


def ranker_of_family(own: ServedFamily) -> RankerArgs | None:
    """The heavy ranker that a version was made with, if any."""
    return RankerArgs(path=own.ranker.path, folder=own.ranker.folder) if own.ranker.path else None


@contextmanager
def served(
    args: ServeArgs,
    placement: DeploymentSize = DeploymentSize(),
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    leave_serve: bool = False,
) -> Iterator[str]:
    """Serve the application inside the block; yields its URL.

    Args:
        leave_serve: do not stop Ray Serve at the end, because its cluster ends too.

    Raises:
        ValueError: if the file of keys lets nobody in, or a variable of `listening` has no value of its kind.
        UnavailableError: if the port is taken, Ray Serve already runs on the cluster, or the application does not
            start.
    """
    check_port(host, port)
    most_passed()  # the proxy reads it, whose error nobody would see
    if args.keys_file is not None:
        keys, problem = KeysFile(args.keys_file).look()
        if not keys.known:
            raise ValueError(problem)
    target = application(args, placement)
    _check_not_running()
    try:
        start_serve(host, port)
        url = f"http://{host}:{port}"
        deploy(target, url)
        yield url
    finally:
        if not leave_serve:
            ray_serve.shutdown()


def deploy(target: Application, url: str) -> None:
    """Deploy the application on the Ray Serve that listens at the URL, and wait until it answers.

    Raises:
        UnavailableError: if it does not start.
    """
    run = ray_serve.RunTarget(target=target, name=NAME, route_prefix="/", logging_config=QUIET)
    ray_serve.run_many([run], wait_for_applications_running=False)
    _wait_until_healthy(url, ProgressWatch())


def start_serve(host: str, port: int) -> None:
    """Start Ray Serve, to listen there.

    Raises:
        UnavailableError: if it does not start.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    options = HTTPOptions(**http_options(host, port))
    for starts_left in reversed(range(NUM_STARTS)):
        try:
            ray_serve.start(http_options=options, logging_config=QUIET)
            return
        except RayActorError as error:
            if not starts_left:
                raise UnavailableError(
                    f"Ray Serve must start, got a proxy that was not ready in time, {NUM_STARTS} times: try again when "
                    "the machine is less busy, or set RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S to more seconds"
                ) from error


def _check_not_running() -> None:
    """Another Serve listens on its own port, and stopping ours would stop its applications too."""
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return
    raise UnavailableError(
        "Ray Serve must not run yet on this cluster, got one that does: give what `rails-ray serve --print-config` "
        "prints to `serve deploy`"
    )


def _wait_until_healthy(url: str, watch: ProgressWatch) -> None:
    """Raises:
    UnavailableError: if a deployment fails, or the application makes no progress.
    """
    while True:
        status = ray_serve.status()
        application = status.applications[NAME]
        answer = _health(url) if application.status == "RUNNING" else None
        # No key needed: a 401 shows that the router answers, and RUNNING that the shards do.
        if answer in (200, 401):
            return
        reason = _why_not_started(application)
        if reason is not None:
            raise UnavailableError(f"the application must start, got: {reason}")
        if watch.is_stalled((picture(status, application), answer)):
            missing = still_missing(application) or f"answer at {url}: {answer or 'none'}"
            state = ApplicationStatus(application.status).value
            raise UnavailableError(
                f"the application must make progress until it answers, got none for {watch.limit_s:g} s in status "
                f"{state} ({missing}): check that the cluster has room for all shards"
            )
        time.sleep(LOOK_S)  # Serve has no event for a change of its status


def _health(url: str) -> int | None:
    """The HTTP status of the server's health; None if nobody answers."""
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/v1/health", timeout=ANSWER_TIMEOUT_S, trust_env=False).status_code
    return None


def _why_not_started(status: ApplicationStatusOverview) -> str | None:
    """Why a deployment did not start, in one line; None if none has failed.

    Serve retries a failing replica many times; our own errors recur each time.
    """
    messages = [deployment.message for deployment in status.deployments.values() if deployment.message]
    lines = [line.strip() for line in "\n".join([*messages, status.message]).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("rails_ray.errors.")]
    if ours:
        return ours[0].split(": ", 1)[1]
    return lines[-1] if status.status == "DEPLOY_FAILED" and lines else None
