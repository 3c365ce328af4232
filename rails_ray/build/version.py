"""What a stored version is made of: its config, its model, and what scores its items."""

from collections.abc import Iterator
from typing import Any

from rails_ray.build import family
from rails_ray.build.family import Family
from rails_ray.config import RunConfig, from_json
from rails_ray.cutoffs.calibration import Calibration
from rails_ray.cutoffs.offers import Offers
from rails_ray.models import Model
from rails_ray.storage.calibrations import StoredCalibration
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import CONFIG, Encoded, read_file
from rails_ray.storage.shards import Items, read_shards


def version_config(storage: Storage, described: Encoded) -> RunConfig:
    """The config of the run that a version comes from."""
    return from_json(read_file(storage, described.version, described.file(CONFIG)))


def version_family(storage: Storage, described: Encoded) -> Family:
    """The family of that run."""
    return family(version_config(storage, described))


def version_model(storage: Storage, described: Encoded) -> Model:
    """The model of a version.

    Raises:
        DamagedError: if config or weights differ from the manifest.
    """
    return version_family(storage, described).trained_model(_weights(storage, described))


def version_similarity(storage: Storage, described: Encoded) -> Any:
    """What scores the items of a version, if possible without what encodes queries. Raises what `version_model`
    does."""
    return version_family(storage, described).trained_similarity(_weights(storage, described))


def version_items(storage: Storage, described: Encoded) -> Items:
    """All items of a version.

    Raises:
        DamagedError: if a part is missing or changed.
    """
    state = version_family(storage, described).item_state
    return read_shards(storage, described, range(len(described.shard_items)), state)


def version_calibration(offers: Offers, stored: StoredCalibration) -> Calibration:
    """A version's calibration, ready to cut."""
    return Calibration(stored.positives, offers.distribution(stored.background), stored.num_segments)


def _weights(storage: Storage, described: Encoded) -> Iterator[tuple[str, bytes]]:
    """Each file of a version's weights with its path, read when it is asked for."""
    return ((entry.path, read_file(storage, described.version, entry)) for entry in described.weights)
