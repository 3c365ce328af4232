"""The stages on a Ray cluster: placement, and nothing else.

    train(config, storage)      -> a run        Ray Train, any number of workers
    encode(storage, run)        -> parts        Ray Data
    publish(storage, version)   -> a version    one atomic write
    evaluate(storage, ...)      -> a report     one task
    serving                     -> HTTP         Ray Serve: a router, a deployment per shard

Each function runs on the cluster that the process is connected to; see `cluster`.
"""

from rails_ray.on_ray.encoding import encode
from rails_ray.on_ray.evaluating import evaluate
from rails_ray.on_ray.pipeline import pipeline
from rails_ray.on_ray.publishing import publish
from rails_ray.on_ray.submitting import submit
from rails_ray.on_ray.training import train

__all__ = ["encode", "evaluate", "pipeline", "publish", "submit", "train"]
