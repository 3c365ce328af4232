"""`rails_ray.serve_app:build` by the name that it has in the repository: `serve.app:build`."""

from rails_ray.serve_app import ServeArgs, build

__all__ = ["ServeArgs", "build"]
