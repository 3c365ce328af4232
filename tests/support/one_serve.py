"""One Ray Serve for all tests that ask an application what it answers: only the application changes."""

from collections.abc import Iterator
from contextlib import contextmanager

from ray import serve as ray_serve

from rails_ray.on_ray.serving.app import application, deploy, start_serve
from rails_ray.on_ray.serving.plan import NAME, DeploymentSize, ServeArgs
from support.ports import free_port

_urls = list[str]()  # of the one that runs, if any


@contextmanager
def served(args: ServeArgs, placement: DeploymentSize = DeploymentSize()) -> Iterator[str]:
    """Serve the application inside the block; yields its URL."""
    target = application(args, placement)
    if not _urls:
        port = free_port()
        start_serve("127.0.0.1", port)
        _urls.append(f"http://127.0.0.1:{port}")
    try:
        deploy(target, _urls[0])
        yield _urls[0]
    finally:
        ray_serve.delete(NAME)


def stop() -> None:
    """For a test that starts Ray Serve itself."""
    if _urls:
        ray_serve.shutdown()
        _urls.clear()
