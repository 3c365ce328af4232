"""The watermark of a version: which files of its data it has read, each in which state.

    objects/<sha256>    JSON: the tag of each file, by root and path

It is part of the version, so that a rollback takes it back too, and an addition that is published is never read twice.
"""

import json
from collections.abc import Mapping

from rails_ray.errors import DamagedError
from rails_ray.storage.described import Encoded, FileEntry
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import read_file, write_object


def write(storage: Storage, tags: Mapping[str, str]) -> FileEntry:
    """Store the files that were read."""
    return write_object(storage, json.dumps(dict(sorted(tags.items()))).encode())


def read(storage: Storage, described: Encoded) -> dict[str, str]:
    """The files that a version has read; none if nobody noted them.

    Raises:
        DamagedError: if the object is missing or changed.
    """
    if described.watermark is None:
        return {}
    found = json.loads(read_file(storage, described.home, described.watermark))
    if not isinstance(found, dict):
        raise DamagedError(f"{described.watermark.path} must hold the tags of files, got {type(found).__name__}")
    return found
