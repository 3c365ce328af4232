"""Wait for an application that starts, as long as it makes progress."""

import time
from collections.abc import Callable, Hashable

from ray.serve.schema import ApplicationStatusOverview, ServeStatus

STALL_S = 120.0  # without progress; Serve says every 30 s what a slow replica waits for
FREE_RESOURCES = "total resources available"  # what Serve says after it changes with every job of the cluster


class ProgressWatch:
    """Tells when nothing new has been seen for too long.

    What was seen before is no progress: a replica that fails and starts again, over and over, makes none.

    Args:
        limit_s: longest time without progress.
    """

    def __init__(self, limit_s: float = STALL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._seen = set[Hashable]()
        self._progress_at = clock()

    def is_stalled(self, seen: Hashable) -> bool:
        """Take note of what is seen now; return whether it is too long since anything new was seen."""
        now = self._clock()
        if seen not in self._seen:
            self._seen.add(seen)
            self._progress_at = now
        return now - self._progress_at >= self.limit_s


def picture(status: ServeStatus, application: ApplicationStatusOverview) -> Hashable:
    """All that shows progress: states of proxies, deployments and replicas, and Serve's messages."""
    deployments = {
        name: (
            deployment.status,
            frozenset(deployment.replica_states.items()),
            deployment.message.partition(FREE_RESOURCES)[0],
        )
        for name, deployment in application.deployments.items()
    }
    return (
        frozenset(status.proxies.items()),
        application.status,
        application.message.partition(FREE_RESOURCES)[0],
        frozenset(deployments.items()),
    )


def still_missing(application: ApplicationStatusOverview) -> str:
    """The replicas that do not run yet, by deployment; empty if all run."""
    found = list[str]()
    for name, deployment in application.deployments.items():
        states = {str(state): number for state, number in deployment.replica_states.items() if state != "RUNNING"}
        if deployment.status != "HEALTHY":
            found.append(
                f"{name}: " + (", ".join(f"{number} {state}" for state, number in states.items()) or "none yet")
            )
    return "; ".join(found)
