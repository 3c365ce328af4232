"""A server that follows a storage of two versions, and what its looks say."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from rails_ray import local
from rails_ray.serving.following import Follower
from rails_ray.serving.http.single import SingleProcessServer, listening
from rails_ray.serving.request_limits import Limits
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.ports import free_port

WIDTH, NUM_ITEMS = 6, 40
BODY = {"queries": [{"embedding": [1.0, 0.5, -0.5, 0.25, 2.0, -1.0]}, {"embedding": [0.0, 1, 0, 0, 0, 1]}], "k": 7}


def vectors_of(seed: int, num_items: int = NUM_ITEMS) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((num_items, WIDTH)).astype(np.float32)


def build(folder: Path, version: str, seed: int) -> local.Version:
    """A version that becomes current, whose titles name it."""
    titles = [f"{version}-{row}" for row in range(NUM_ITEMS)]
    return local.build(vectors_of(seed), titles=titles, folder=str(folder), version=version)


def answer_of(version: local.Version) -> dict[str, Any]:
    found: dict[str, Any] = version.search(**BODY).model_dump(mode="json")
    return found


def is_answer(given: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Return whether an answer is the expected one. Scores that were computed with others are rounded differently."""
    rounded = [dict(result, scores=np.round(result["scores"], 4).tolist()) for result in given["results"]]
    wanted = [dict(result, scores=np.round(result["scores"], 4).tolist()) for result in expected["results"]]
    return {**given, "results": rounded} == {**expected, "results": wanted}


class Watched:
    """A server of the current version, whose follower looks when it is called, by a clock that the test moves."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.storage, self.now = Storage(str(folder)), 0.0
        self.server = SingleProcessServer(local.open(str(folder), limits=Limits()), **options)
        self.follower = Follower(self.server, self.storage, clock=lambda: self.now)
        self.server.follower = self.follower

    @property
    def name(self) -> str:
        return self.server.served.name

    def health(self) -> dict[str, Any]:
        with serving(self.server) as url:
            found: dict[str, Any] = httpx.get(f"{url}/v1/health").json()
            return found


@contextmanager
def serving(server: SingleProcessServer) -> Iterator[str]:
    """The address of a server while the block lasts."""
    port = free_port()
    with listening(server, port=port):
        yield f"http://127.0.0.1:{port}"


def two_versions(folder: Path) -> Path:
    """A storage of v1, which is current, and v2."""
    build(folder, "v1", 1)
    build(folder, "v2", 2)
    versions.rollback(Storage(str(folder)), "v1")
    return folder
