"""A version in this process, and a server of it."""

from collections.abc import Iterator

import pytest

from rails_ray.serving import local
from rails_ray.serving.http.single import SingleProcessServer, listening
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.request_limits import Limits
from support.examples import publish_here
from support.ports import free_port


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> LocalVersion:
    folder = tmp_path_factory.mktemp("web")
    publish_here(folder)
    return local.open(str(folder), limits=Limits())


@pytest.fixture(scope="module")
def url(version: LocalVersion) -> Iterator[str]:
    port = free_port()
    with listening(SingleProcessServer(version), port=port):
        yield f"http://127.0.0.1:{port}"
