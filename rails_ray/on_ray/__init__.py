"""The stages on a Ray cluster. This package only places work.

    train(config, storage)      -> a run        Ray Train or tasks: each piece on its own, any number of workers
    encode(storage, run)        -> parts        Ray Data
    publish(storage, version)   -> a version    one atomic write
    evaluate(storage, ...)      -> a report     one task
    compare(storage, run)       -> a sentence   one task: its mixture beside a dot product of as many numbers
    fill(storage, name, ...)    -> a matrix     Ray Data: a heavy ranker's scores, as a data set to train on
    calibrate(storage, ...)     -> a report     one task; stores the calibration beside the version
    serving                     -> HTTP         Ray Serve: routers, and shards in them or apart

Each function runs on the cluster that the process is connected to; see `cluster`. Its module is imported at first use:
a replica of the server needs neither Ray Train nor Ray Data, and importing them takes longer than all else it imports.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rails_ray.optional import optional

if TYPE_CHECKING:
    from rails_ray.on_ray.advising import compare
    from rails_ray.on_ray.calibrating import calibrate
    from rails_ray.on_ray.encoding import encode
    from rails_ray.on_ray.evaluating import evaluate
    from rails_ray.on_ray.pipelining import pipeline
    from rails_ray.on_ray.publishing import publish
    from rails_ray.on_ray.relevance_matrix import fill
    from rails_ray.on_ray.submitting import submit
    from rails_ray.on_ray.training import train

__all__ = ["calibrate", "compare", "encode", "evaluate", "fill", "pipeline", "publish", "submit", "train"]

MODULES = {
    "calibrate": "calibrating",
    "compare": "advising",
    "encode": "encoding",
    "evaluate": "evaluating",
    "fill": "relevance_matrix",
    "pipeline": "pipelining",
    "publish": "publishing",
    "submit": "submitting",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        optional("ray", needed_by=f"{__name__}.{name}", package="ray", install="'rails-ray[ray]'")
        return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
