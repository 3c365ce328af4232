"""Publish an encoded version: checked whole, described by its manifest, made current by one write."""

from datetime import UTC, datetime

from rails_ray.storage import manifest
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import Manifest


def publish(storage: str, version: str) -> Manifest:
    """Make an encoded version the current one. Until the last write, the former version stays current.

    Raises:
        NotFoundError: if nothing was encoded under this name.
        DamagedError: if a part is missing or changed, or an item is missing or there twice.
    """
    store = Storage(storage)
    encoded = manifest.read_encoded(store, version)
    return manifest.publish(store, encoded, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
