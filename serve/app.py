"""What Ray Serve deploys: `serve.app:build`."""

from rails_ray.on_ray.serving.app import build
from rails_ray.on_ray.serving.plan import ServeArgs

__all__ = ["ServeArgs", "build"]
