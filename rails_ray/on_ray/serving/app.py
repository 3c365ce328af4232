"""The application: one router, one query encoder, a deployment per shard.

No annotation of `build` may be a string: Ray reads it to make its arguments.
"""

import errno
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import ray
from pydantic import BaseModel, ConfigDict, Field
from ray import serve as ray_serve
from ray.serve import Application
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatusOverview, LoggingConfig

from rails_ray.errors import UnavailableError
from rails_ray.on_ray.serving.encoder import QueryEncoder
from rails_ray.on_ray.serving.router import Router
from rails_ray.on_ray.serving.shard import Shard
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import summary
from rails_ray.storage.versions import read_manifest

NAME = "rails-ray"
START_TIMEOUT_S = 120.0  # from deployed to answering


class ServeArgs(BaseModel):
    """What `serve.app:build` takes."""

    model_config = ConfigDict(extra="forbid")

    storage: str
    version: str | None = Field(None, description="the current one by default")
    num_cpus: float = Field(0.1, ge=0, description="CPUs that each replica reserves")
    num_gpus: float = Field(0, ge=0, description="GPUs, or a part of one, of each shard and encoder replica")
    timeout_s: float = Field(10, gt=0, description="how long an encoder or a shard may take to answer")


def build(args: ServeArgs) -> Application:
    """The application for one index version, its shards read from the manifest.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if its manifest cannot be read.
    """
    store = Storage(args.storage)
    manifest = read_manifest(store, args.version)
    resources = {"num_cpus": args.num_cpus, "num_gpus": args.num_gpus}
    deployments: tuple[Any, Any, Any] = QueryEncoder, Shard, Router  # types cannot say what the decorator makes of them
    query_encoder, shard_search, router = deployments
    encoder = query_encoder.options(ray_actor_options=resources).bind(str(store), manifest.version)
    shards = [
        shard_search.options(name=f"Shard{shard:03d}", ray_actor_options=resources).bind(
            str(store), manifest.version, shard
        )
        for shard in range(len(manifest.shard_items))
    ]
    application: Application = router.options(ray_actor_options={"num_cpus": args.num_cpus}).bind(
        encoder, shards, manifest.shard_items, summary(manifest), args.timeout_s
    )
    return application


@contextmanager
def served(args: ServeArgs, *, host: str = "127.0.0.1", port: int = 8000, leave_serve: bool = False) -> Iterator[str]:
    """The application answering at a URL inside the block.

    Args:
        leave_serve: end without stopping Ray Serve, because its cluster ends as well.

    Raises:
        UnavailableError: if the port is taken, Ray Serve runs on the cluster already, or the application does not
            come up.
    """
    check_port(host, port)
    application = build(args)
    _check_not_running()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    try:
        ray_serve.start(http_options=HTTPOptions(host=host, port=port), logging_config=quiet)
        target = ray_serve.RunTarget(target=application, name=NAME, route_prefix="/", logging_config=quiet)
        ray_serve.run_many([target], wait_for_applications_running=False)
        url = f"http://{host}:{port}"
        _wait_until_healthy(url)
        yield url
    finally:
        if not leave_serve:
            ray_serve.shutdown()


def check_port(host: str, port: int) -> None:
    """Raises:
    ValueError: if there can be no such port.
    UnavailableError: if another program listens there, or the address is not this machine's.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"port must be from 1 to 65535, got {port}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                reason = f"port must be free, got {port}, which another program uses: choose another --port"
            else:
                reason = f"host and port must be of this machine, got {host}:{port}: {error.strerror}"
            raise UnavailableError(reason) from None


def _check_not_running() -> None:
    """A Serve that is not ours listens on a port of its own, and ending would take its applications down as well."""
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return
    raise UnavailableError(
        "Ray Serve must not run yet on this cluster, got one that does: add the application to it with "
        "`serve run serve.app:build storage=DIR --name rails-ray`"
    )


def _wait_until_healthy(url: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        status = ray_serve.status().applications[NAME]
        if status.status == "RUNNING":
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/v1/health", timeout=START_TIMEOUT_S, trust_env=False).is_success:
                    return
        reason = _why_not_started(status)
        if reason is not None:
            raise UnavailableError(f"the application must start, got: {reason}")
        time.sleep(0.2)
    raise UnavailableError(
        f"the application must answer within {START_TIMEOUT_S:g} s, got status {status.status}: "
        "is there room on the cluster for all shards?"
    )


def _why_not_started(status: ApplicationStatusOverview) -> str | None:
    """The reason that a deployment gives for not starting, in a line; None as long as none has failed.

    Serve tries a replica that fails many times over; an error of ours will be the same each time.
    """
    messages = [deployment.message for deployment in status.deployments.values() if deployment.message]
    lines = [line.strip() for line in "\n".join([*messages, status.message]).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("rails_ray.errors.")]
    if ours:
        return ours[0].split(": ", 1)[1]
    return lines[-1] if status.status == "DEPLOY_FAILED" and lines else None
