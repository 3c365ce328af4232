"""What Ray Serve deploys: `rails_ray.serve_app:build`, the import path in the configs of `serve deploy`."""

from rails_ray.on_ray.serving.app import build
from rails_ray.on_ray.serving.plan import ServeArgs

__all__ = ["ServeArgs", "build"]
