"""The family of a run, from the folder of its config: `serve` and `train` are imported when they are needed."""

from importlib import import_module
from typing import Any

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.families.config import RunConfig
from rails_ray.families.served_family import ServedFamily


def served_family(config: RunConfig, allowed: AllowedCode = OURS_ALONE) -> ServedFamily:
    """The family of a run, to serve it. No module of training is imported.

    Args:
        allowed: code that the config may name by its import path, beside our own.
    """
    family: ServedFamily = member(config, "serve").of(config, allowed)
    return family


def member(config: RunConfig, module: str) -> Any:
    """The FAMILY of a module in the folder that the config of a family lies in."""
    folder, _, _ = type(config.family).__module__.rpartition(".")
    return import_module(f"{folder}.{module}").FAMILY
