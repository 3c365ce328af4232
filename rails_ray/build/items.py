"""Fit, then map: how the items of a corpus become what an index stores; a part of `build`.

An artefact is made once, from all items, and stored beside the version (SOLAR's codes by item id, say). With it, and
with the model, each block of items is then mapped to its state, whatever the other blocks are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from rails_ray.evaluation.ranking import encode_items
from rails_ray.models import Model
from rails_ray.similarities.states import AnyItems
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.runs import Run

NewCodes = Literal["least_loaded", "predicted"]


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """What an artefact is made from.

    folder: of the version, where it is stored.
    run: whose model encodes the items.
    items: of the whole corpus, as in `Corpus`.
    new_codes: how items are coded that have no code yet.
    remotely: calls a function with arguments in a task on the cluster; what it returns.
    """

    storage: Storage
    folder: str
    run: Run
    items: pa.Table
    new_codes: NewCodes
    remotely: Callable[..., Any]

    def need_least_loaded(self, name: str) -> None:
        """Raises:
        ValueError: if codes are to be predicted, which those of these items cannot be.
        """
        if self.new_codes == "predicted":
            raise ValueError(
                f"new_codes predicted needs codes of items with a text, got run {self.run.name!r} of {name}"
            )


@runtime_checkable
class ItemEncoder(Protocol):
    """Maps items to their states, each for itself."""

    def __call__(self, item_ids: Sequence[Any], inputs: Any) -> AnyItems:
        """
        Args:
            inputs: what a model reads of them; None of a family that `encodes_inputs` of none.
        """


@dataclass(frozen=True)
class ByModel:
    """The contract of `ItemEncoder`: a model computes the states from the items' inputs."""

    model: Model

    def __call__(self, item_ids: Sequence[Any], inputs: Any) -> AnyItems:
        return encode_items(self.model, self.model.item_features(inputs))
