"""How a deployment calls its heavy ranker, and where that runs."""

from dataclasses import dataclass
from typing import Annotated

import tyro
from pydantic import AfterValidator, ConfigDict, Field

from rails_ray.schema.ranker import RankerConfig

REQUEST_TIMEOUT_S = 30  # for a whole request: a body as slow as `access` allows, or shards as slow as `timeout_s`


def _check_timeout(timeout_s: float) -> float:
    if timeout_s >= REQUEST_TIMEOUT_S:
        raise ValueError(f"must be less than the {REQUEST_TIMEOUT_S} s of a whole request, got {timeout_s:g}")
    return timeout_s


@dataclass(frozen=True, kw_only=True)
class RankerArgs(RankerConfig):
    """The heavy ranker that a deployment calls.

    Args:
        path: Import path, MODULE:NAME, on the ranker's machines.
        timeout_s: Seconds that a call may take, its wait for a place included.
        concurrency: Calls that a replica scores at once.
        max_in_flight: Calls of a router that are under way at once; others wait.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", validate_default=True)

    path: Annotated[str, Field(min_length=1)] = ""
    timeout_s: Annotated[float, Field(gt=0), AfterValidator(_check_timeout)] = 10
    concurrency: Annotated[int, Field(ge=1)] = 1
    max_in_flight: Annotated[int, Field(ge=1)] = 32


@dataclass(frozen=True, kw_only=True)
class RankerPlacement:
    """Where the heavy ranker runs.

    Args:
        replicas: Replicas of the ranker.
        num_cpus: CPUs that each replica reserves.
        num_gpus: GPUs that each replica reserves; may be a part of one.
    """

    replicas: int = 1
    num_cpus: Annotated[float, tyro.conf.arg(name="cpus")] = 1
    num_gpus: Annotated[float, tyro.conf.arg(name="gpus")] = 0

    def __post_init__(self) -> None:
        check_replica(self.replicas, self.num_cpus, self.num_gpus)


def check_replica(replicas: int, num_cpus: float, num_gpus: float) -> None:
    """Raises:
    ValueError: for reservations that cannot be made.
    """
    if replicas < 1:
        raise ValueError(f"replicas must be at least 1, got {replicas}")
    if num_cpus < 0 or num_gpus < 0:
        raise ValueError(f"num_cpus and num_gpus must be at least 0, got {num_cpus:g} and {num_gpus:g}")
    if num_gpus > 1 and num_gpus % 1:
        raise ValueError(f"num_gpus must be a part of one GPU or a whole number, got {num_gpus:g}")
