"""Publish an encoded version: check it, write its manifest, make it current with one write."""

from collections.abc import Callable
from datetime import UTC, datetime

from rails_ray.storage import versions
from rails_ray.storage.described import Manifest
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import read_encoded


def publish(storage: str, version: str, *, on_file: Callable[[int, int], None] = lambda done, total: None) -> Manifest:
    """Make an encoded version the current one. Until the last write, the former version stays current.

    Args:
        on_file: called with (files checked, all files).

    Raises:
        NotFoundError: if nothing was encoded under this name.
        DamagedError: if a part is missing or changed, or an item is missing or occurs twice.
        ConflictError: if another version was published in the meantime.
        StorageError: if the storage cannot guarantee that only one of two publishers wins.
    """
    store = Storage(storage)
    return versions.publish(store, read_encoded(store, version), f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", on_file)
