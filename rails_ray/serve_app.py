"""The application under the import path that configs of `serve deploy` name: `rails_ray.serve_app:build`."""

from rails_ray.on_ray.serving.app import build
from rails_ray.on_ray.serving.plan import ServeArgs

__all__ = ["ServeArgs", "build"]


def __dir__() -> list[str]:
    return __all__
