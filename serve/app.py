"""What Ray Serve deploys: `serve.app:build`."""

from rails_ray.on_ray.serving.app import ServeArgs, build

__all__ = ["ServeArgs", "build"]
