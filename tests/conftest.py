"""One Ray cluster for the whole session."""

import os
import secrets
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Ray reads its environment when it is first imported. A token of the session's own: nothing is written to $HOME.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.1"
os.environ.pop("RAY_ADDRESS", None)

# No deadline: a noisy machine is no failure. CI tries the same examples each time; by hand new ones are tried.
settings.register_profile("by hand", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "by hand")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One local cluster for all tests that need a real one."""
    from rails_ray.on_ray.cluster import cluster

    with cluster():
        yield
