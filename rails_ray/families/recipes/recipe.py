"""Arguments of every recipe: the fields of a run's config that people change first."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rails_ray.families.config import RunConfig


class Recipe:
    """Function that returns the config of a run, with arguments for what people change first.

    Args:
        make: returns the config without changes.
    """

    __name__: str

    def __init__(self, make: Callable[[], RunConfig]) -> None:
        self.__name__, self.__module__ = make.__name__, make.__module__
        self.__doc__ = f"{make.__doc__}\n\n{Recipe.__call__.__doc__}"
        self.make = make

    def __call__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        seed: int | None = None,
        width: int | None = None,
        num_steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
    ) -> RunConfig:
        """The config of a run; without an argument as the recipe has it.

        Args:
            folder: folder of the data set's tables, local or s3://bucket/prefix.
            seed: seeds initial weights, batches and dropout.
            width: numbers in each component that the model makes of a query or an item.
            num_steps: optimiser steps to take.
            batch_size: queries per step over all workers, as in `TrainingConfig`.
            learning_rate: peak learning rate.

        Raises:
            ValueError: if a number is out of range, or a width is given to a model that makes no components.
        """
        config = self.make()
        steps = {"num_steps": num_steps, "batch_size": batch_size, "learning_rate": learning_rate}
        changes: dict[str, Any] = {name: value for name, value in steps.items() if value is not None}
        if width is not None:
            config = config.with_width(width)
        return replace(
            config,
            seed=config.seed if seed is None else seed,
            data=config.data if folder is None else replace(config.data, folder=os.fspath(folder)),
            training=replace(config.training, **changes),
        )

    def __reduce__(self) -> str:
        return self.__name__  # the module has this in place of the function
