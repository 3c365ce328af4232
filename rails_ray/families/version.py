"""What a stored version is made of: its config, its model, and what scores its items."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.cutoffs.calibration import Calibration
from rails_ray.cutoffs.support import CutoffSupport
from rails_ray.families import family
from rails_ray.families.base import Family
from rails_ray.families.config import RunConfig, from_json
from rails_ray.modules.model import Model
from rails_ray.storage.calibrations import StoredCalibration
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import CONFIG, Encoded, read_file
from rails_ray.storage.parquet import item_state
from rails_ray.storage.shards import Items, read_part, read_shards


def version_config(storage: Storage, described: Encoded) -> RunConfig:
    """The config of the run that a version comes from."""
    return from_json(read_file(storage, described.version, described.file(CONFIG)))


def version_family(storage: Storage, described: Encoded, allowed: AllowedCode = OURS_ALONE) -> Family:
    """The family of that run.

    Args:
        allowed: code that its config may name by its import path, beside our own.
    """
    return family(version_config(storage, described), allowed.read_by(f"version {described.version}", str(storage)))


def version_model(storage: Storage, described: Encoded, allowed: AllowedCode = OURS_ALONE) -> Model:
    """The model of a version.

    Raises:
        DamagedError: if config or weights differ from the manifest.
        ValueError: if the config names code that is not allowed.
    """
    return version_family(storage, described, allowed).trained_model(_weights(storage, described))


def version_similarity(storage: Storage, described: Encoded) -> Any:
    """What scores the items of a version, if possible without what encodes queries. Raises what `version_model`
    does."""
    own = version_family(storage, described)
    return own.version_similarity(_weights(storage, described), partial(_file, storage, described))


def version_items(storage: Storage, described: Encoded) -> Items:
    """All items of a version, as its model scores them.

    Raises:
        DamagedError: if a part is missing or changed.
    """
    own = version_family(storage, described)
    found = read_shards(storage, described, range(len(described.shard_items)), own.item_state)
    return replace(found, state=own.as_scored(found.state, partial(_file, storage, described)))


class Vectors(NamedTuple):
    """Vectors of items, a block at a time.

    blocks: ids and vectors [n, width] of consecutive items.
    """

    width: int
    blocks: Iterator[tuple[pa.ChunkedArray, NDArray[np.float32]]]


def version_vectors(storage: Storage, described: Encoded, component: int | None = None) -> Vectors:
    """The vectors that a version stores of its items.

    Args:
        component: number of the component; by default the mean component, or the only one.

    Raises:
        ValueError: if the items have no such vectors.
    """
    shape = described.state.shapes.get("components")
    if shape is None:
        raise ValueError(
            f"version {described.version} must store vectors of its items, got {described.state.kind}: export another"
        )
    if component is not None and not 0 <= component < shape[0]:
        raise ValueError(f"component must be at least 0 and below the {shape[0]} of an item, got {component}")
    if component is None and shape[0] > 1 and "average" not in described.state.shapes:
        raise ValueError(f"version {described.version} must store the mean component, got none: name a component")
    state = version_family(storage, described).item_state

    def blocks() -> Iterator[tuple[pa.ChunkedArray, NDArray[np.float32]]]:
        for entry in sorted(described.parts, key=lambda entry: entry.first_row):
            part = read_part(storage, described, entry)
            columns = item_state(part, state).columns()
            found = columns.get("average", columns["components"][:, 0])
            vectors = found if component is None else columns["components"][:, component]
            yield part["item_id"], vectors.float().numpy()

    return Vectors(shape[1], blocks())


def version_calibration(offers: CutoffSupport, stored: StoredCalibration) -> Calibration:
    """A version's calibration, ready to cut."""
    return Calibration(stored.positives, offers.distribution(stored.background), stored.num_segments)


def _file(storage: Storage, described: Encoded, name: str) -> bytes:
    return read_file(storage, described.version, described.file(name))


def _weights(storage: Storage, described: Encoded) -> Iterator[tuple[str, bytes]]:
    """Each file of a version's weights with its path, read when it is asked for."""
    return ((entry.path, read_file(storage, described.version, entry)) for entry in described.weights)
