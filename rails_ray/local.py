"""Build and search a version in this process, without a server and without Ray: the public door of `serving.local`."""

from rails_ray.schema.queries import Query
from rails_ray.serving.local import LocalVersion as Version
from rails_ray.serving.local import build, open

__all__ = ["Query", "Version", "build", "open"]


def __dir__() -> list[str]:
    return __all__
