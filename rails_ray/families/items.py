"""Fit, then map: how the items of a corpus become what an index stores.

An artefact is made once, from all items, and stored beside the version (SOLAR's codes by item id, say). With it, and
with the model, each block of items is then mapped to its state, whatever the other blocks are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from rails_ray.data.corpus import Corpus, ItemSource, item_inputs
from rails_ray.data.encoding import encode_items
from rails_ray.data.queries import Queries
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet_files import FileRows
from rails_ray.storage.runs import Run

NewCodes = Literal["least_loaded", "predicted"]
SAMPLE_BLOCKS = 64  # of consecutive items that a sample is made of, as neighbours may be alike


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """Inputs of an artefact.

    folder: the version's folder, where the artefact is stored.
    run: the run whose model encodes the items.
    corpus: the items to encode.
    new_codes: how items without a code get one.
    remotely: calls a function with arguments in a task on the cluster, and returns its result.
    files: what each file of the corpus holds.
    training_queries: reads the queries that the run was trained on.
    """

    storage: Storage
    folder: str
    run: Run
    corpus: Corpus
    new_codes: NewCodes
    remotely: Callable[..., Any]
    training_queries: Callable[[], Queries]
    files: Sequence[FileRows] = ()

    def need_least_loaded(self, name: str) -> None:
        """Raises:
        ValueError: if codes are to be predicted, which these items do not allow.
        """
        if self.new_codes == "predicted":
            raise ValueError(
                f"new_codes predicted needs items with texts and codes, got run {self.run.name!r} of {name}"
            )


@dataclass(frozen=True)
class Fit:
    """An artefact that is decided on, but not made.

    facts: what it depends on beside run and items.
    store: makes it and stores it in the version's folder, unless it is there already or nothing is needed.
    files: gives what a search of the version needs of it, by name, once it is stored.
    """

    facts: dict[str, str] = field(default_factory=dict)
    store: Callable[[], None] = lambda: None
    files: Callable[[], dict[str, bytes]] = dict


@runtime_checkable
class ItemEncoder(Protocol):
    """Maps items to their states, each for itself."""

    def __call__(self, item_ids: Sequence[Any], inputs: Any) -> AnyItems:
        """
        Args:
            inputs: what a model reads of the items; None if the family has no `encodes_inputs`.
        """


def check_codes(num_zero: int) -> None:
    """Check that codes without vectors stand for directions.

    Args:
        num_zero: items that have none.

    Raises:
        ValueError: if there are some.
    """
    if num_zero:
        raise ValueError(
            f"codes must stand for directions, got {num_zero:,} items with a vector of zeros: leave them out, or keep "
            "vectors too with --keep-vectors"
        )


def sampled(source: ItemSource, files: Sequence[FileRows], encode: ItemEncoder, most: int) -> list[AnyItems]:
    """The states of at most `most` items, in blocks from all over the corpus."""
    return [
        encode(block["item_id"].to_pylist(), item_inputs(block))
        for first, num_rows in _places(sum(file.num_rows for file in files), most)
        for block in source.blocks(files, first, num_rows)
    ]


def _places(num_items: int, most: int) -> list[tuple[int, int]]:
    """First row and number of rows of each block of a sample."""
    if num_items <= most:
        return [(0, num_items)]
    num_blocks = min(SAMPLE_BLOCKS, most)
    sizes = [most * (number + 1) // num_blocks - most * number // num_blocks for number in range(num_blocks)]
    return [(number * (num_items - size) // max(num_blocks - 1, 1), size) for number, size in enumerate(sizes)]


@dataclass(frozen=True)
class ByModel:
    """The contract of `ItemEncoder`: a model computes the states from the items' inputs.

    check: called with ids and features before items are encoded; raises if they cannot be.
    """

    model: Model
    check: Callable[[Sequence[Any], Any], None] | None = None

    def __call__(self, item_ids: Sequence[Any], inputs: Any) -> AnyItems:
        features = self.model.item_features(inputs)
        if self.check is not None:
            self.check(item_ids, features)
        return encode_items(self.model, features)
