"""One Ray cluster for the whole session."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from support import shape_checks
from support.azure_server import HAS_AZURITE, azurite, new_container, use_azure
from support.google_server import google_server_before, use_google
from support.s3_server import new_bucket, s3_server_process, use_s3
from support.tried import FEW, IS_MANY, MANY

shape_checks.install()

# Ray reads its environment when it is first imported. A token of the session's own: nothing is written to $HOME.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.1"
os.environ.pop("RAY_ADDRESS", None)
# Compiled loops are kept for all processes of all tests: each would compile for seconds.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "numba"))

# Triton's kernels run in its interpreter where there is no GPU.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Threads that wait for each other on a busy core make small models 40 times slower.
torch.set_num_threads(1)

# No deadline: a noisy machine is no failure. `make test` tries the same examples each time, `make test-all` others.
settings.register_profile("few", deadline=None, derandomize=True, max_examples=FEW)
settings.register_profile("many", deadline=None, max_examples=MANY, derandomize=bool(os.environ.get("CI")))
settings.load_profile("many" if IS_MANY else "few")


# Seconds since 1970 after which no further test begins, as where CI's time ends.
UNTIL = float(os.environ.get("RAILS_RAY_UNTIL", "inf"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with another file in each commit where time may end before the tests do."""
    if float("inf") > UNTIL:
        files = list(dict.fromkeys(item.path for item in items))
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
        first = int(commit or "0", 16) % max(1, len(files))
        places = {path: (place - first) % len(files) for place, path in enumerate(files)}
        items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() > UNTIL:
        pytest.skip("the time of CI is over")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3 server in a process of its own."""
    with s3_server_process() as url:
        yield url


@pytest.fixture(scope="session")
def ray_cluster(s3_server: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """One local cluster for all tests that need a real one; its workers find the servers of S3 and, if it is installed,
    of Azure."""
    from rails_ray.on_ray.cluster import cluster

    with pytest.MonkeyPatch.context() as environment:
        use_s3(environment, s3_server)
        if HAS_AZURITE:
            use_azure(environment, request.getfixturevalue("azure_server"))
        # workers import rankers of `support` by their paths
        environment.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        with cluster():
            yield


@pytest.fixture(scope="module")
def no_serve(ray_cluster: None) -> None:
    """Ray Serve does not run on the session's cluster, so a test can start its own."""
    from support import one_serve

    one_serve.stop()


@pytest.fixture(autouse=True)
def no_cluster_by_chance(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ray starts a cluster if it is asked anything, which a test without the mark would leave to those after it."""
    is_marked, ran = request.node.get_closest_marker("cluster") is not None, _ray_runs()
    yield
    if not is_marked and not ran and _ray_runs():
        sys.modules["ray"].shutdown()
        pytest.fail("a test without the mark `cluster` must not start Ray")


def _ray_runs() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@pytest.fixture(scope="session")
def azure_server() -> Iterator[str]:
    """The URL of an account on a server in a process of its own."""
    with azurite() as url:
        yield url


@pytest.fixture
def azure(azure_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """`az://` and an empty container, for this process and its children."""
    use_azure(monkeypatch, azure_server)
    return f"az://{new_container(azure_server)}"


@pytest.fixture(scope="session")
def google_server(s3_server: str) -> Iterator[str]:
    """The URL of a server that speaks Google's dialect, in this process, in front of that of S3."""
    with google_server_before(s3_server) as url:
        yield url


@pytest.fixture
def google(google_server: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """`gs://` and an empty bucket, for this process and its children."""
    use_google(monkeypatch, google_server)
    return f"gs://{new_bucket(s3_server)}"


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """`s3://` and an empty bucket, for this process and its children."""
    use_s3(monkeypatch, s3_server)
    return f"s3://{new_bucket(s3_server)}"
