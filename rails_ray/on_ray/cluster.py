"""The Ray cluster that a command uses: the one it is told of, or one of its own that ends with it."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import torch

# Ray Train's controller looks at its workers so often (2 s by default), and a short run waits for each look.
TRAIN_POLL_S = "0.2"


def reserved_device() -> str:
    """The torch device that Ray has reserved for this task or replica; a GPU that is only counted is the CPU."""
    has_gpu = ray.get_runtime_context().get_accelerator_ids().get("GPU") and torch.cuda.is_available()
    return "cuda" if has_gpu else "cpu"


@contextmanager
def cluster(num_cpus: int = 4) -> Iterator[bool]:
    """Connected to Ray inside the block, which gets whether the cluster is its own.

    A connection that is there already is used and left alone, and so is the cluster that RAY_ADDRESS names. Otherwise
    a local cluster is started, and stopped at the end.

    Args:
        num_cpus: that a cluster of its own offers at least. They are reservations, not threads: on two cores, four let
            two workers and Ray's own tasks in.
    """
    if ray.is_initialized():
        yield False
        return
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", TRAIN_POLL_S)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # workers without a GPU: the coming default
    is_own = "RAY_ADDRESS" not in os.environ
    if not is_own:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    else:
        # Its one machine is never drained: no process for each run of Ray Train to look for that.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
        ray.init(
            address="local",  # not one that happens to run on this machine
            num_cpus=max(os.cpu_count() or 1, num_cpus),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    try:
        yield is_own
    finally:
        ray.shutdown()
