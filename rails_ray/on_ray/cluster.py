"""The Ray cluster that a command uses: the one that RAY_ADDRESS names, or its own, which ends with it."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import ray
import torch

from rails_ray.errors import UnavailableError
from rails_ray.on_ray import processes
from rails_ray.on_ray.environment import ENVIRONMENT, NO_METRICS, ray_address, set_where_missing

# Interval at which Ray Train's controller polls its workers (Ray's default: 2 s). A short run waits for each poll.
TRAIN_POLL_S = "0.2"
# Tries to reach the cluster of RAY_ADDRESS, 40 s each if nothing answers (Ray's default: 20 tries).
NUM_CONNECT_TRIES = "2"
NUM_STARTS = 2  # tries to start our own cluster, if starting takes too long
TOO_SLOW = re.compile("timed out|deadline exceeded|failed to (start|connect to) GCS", re.IGNORECASE)


def reserved_device() -> str:
    """The torch device that Ray has reserved for this task or replica. A GPU that torch cannot use counts as the CPU,
    which is logged, and a process that is connected to no cluster has the CPU."""
    reason = unused_gpu()
    if reason is not None:
        _warn_of_cpu(reason)
        return "cpu"
    return "cuda" if _is_gpu_reserved() else "cpu"


def unused_gpu() -> str | None:
    """Return why this task or replica does not use the GPU that Ray has reserved; None if it does, or has none."""
    if not _is_gpu_reserved() or torch.cuda.is_available():
        return None
    built_for = torch.version.cuda or "(of which this torch has none)"
    return (
        f"Ray has reserved a GPU that torch {torch.__version__} cannot use, so that the CPU computes: install a driver "
        f"for CUDA {built_for}, or another torch"
    )


def _is_gpu_reserved() -> bool:
    if not ray.is_initialized():  # Ray would start a cluster to answer
        return False
    return bool(ray.get_runtime_context().get_accelerator_ids().get("GPU"))


@cache
def _warn_of_cpu(reason: str) -> None:
    """Log once in a process that a GPU is reserved in vain."""
    logging.getLogger("ray.serve").warning(reason)


def reserved_share() -> float:
    """The number of GPUs, or the part of one, that Ray has reserved for this task or replica; 1 without a cluster."""
    if not ray.is_initialized():
        return 1.0
    return float(ray.get_runtime_context().get_assigned_resources().get("GPU", 1.0))


@contextmanager
def cluster(num_cpus: int = 4) -> Iterator[bool]:
    """Inside the block the process is connected to Ray. Yields whether the cluster is our own.

    An existing connection, or else the cluster that RAY_ADDRESS names, is used and left running. Without either, a
    local cluster starts. At the end of the block it stops, and no process of it is left.

    Args:
        num_cpus: least number of CPUs that our own cluster offers. They are reservations, not threads: on two cores,
            four leave room for two workers and Ray's own tasks.

    Raises:
        UnavailableError: if Ray does not start, or the cluster that RAY_ADDRESS names does not answer.
        ValueError: if RAY_ADDRESS is a URL.
    """
    if ray.is_initialized():
        yield False
        return
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", TRAIN_POLL_S)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # for workers without a GPU; Ray's future default
    is_own = ray_address() is None
    before = processes.children()
    if is_own:
        _start(num_cpus)
    else:
        _connect()
    started = processes.children() - before
    try:
        yield is_own
    finally:
        own = processes.with_descendants(started)
        ray.shutdown()
        processes.end(own)


def _start(num_cpus: int) -> None:
    """Start a cluster on this machine. If that takes too long, try once more.

    Raises:
        UnavailableError: if it does not start.
    """
    # This one machine is never drained, so Ray Train needs no process per run to watch for that.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    set_where_missing(ENVIRONMENT | NO_METRICS)
    for starts_left in reversed(range(NUM_STARTS)):
        try:
            _init(
                address="local",  # not a cluster that already runs on this machine
                num_cpus=max(os.cpu_count() or 1, num_cpus),
                include_dashboard=False,
            )
            return
        except Exception as error:
            is_slow = TOO_SLOW.search(str(error)) is not None
            if is_slow and starts_left:
                continue
            remedy = "try again when the machine is less busy" if is_slow else "fix that and try again"
            raise UnavailableError(f"Ray must start on this machine, got: {_reason(error)}: {remedy}") from error


def _connect() -> None:
    """Connect to the cluster that RAY_ADDRESS names.

    Raises:
        UnavailableError: if it does not answer.
    """
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", NUM_CONNECT_TRIES)
    try:
        _init()
    except Exception as error:
        raise UnavailableError(
            f"the Ray cluster that RAY_ADDRESS names, {os.environ['RAY_ADDRESS']}, must answer, got: {_reason(error)}: "
            "check RAY_ADDRESS, RAY_AUTH_TOKEN and that the cluster runs"
        ) from error


def _init(**options: Any) -> None:
    """`ray.init` without output. If it fails, nothing is left half connected.

    Ray cannot stop the processes of a cluster that did not start in time; they end with this process.
    """
    try:
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except Exception:  # RuntimeError, ConnectionError, ValueError or Ray's own errors
        ray.shutdown()
        raise


def _reason(error: Exception) -> str:
    """The first sentence of Ray's message. The rest guesses at causes or quotes logs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.split(r"\.\s", lines[0])[0].rstrip(".:") if lines else type(error).__name__
