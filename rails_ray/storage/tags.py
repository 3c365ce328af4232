"""Tags: names that keep a version from collection, and stand for it where a version is named.

tags/<name>.json    version, nonce
"""

import json
import uuid

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage import manifest
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.intents import intent
from rails_ray.storage.manifest import folder_of, read_json

FOLDER = "tags"


def tag(storage: Storage, name: str, version: str) -> None:
    """Give a published version a tag, or move the tag to it.

    Raises:
        ValueError: if the name cannot be a file's, or is that of a version.
        NotFoundError: if there is no such version.
        ConflictError: if someone else moved the tag in the meantime.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"a tag must be made of letters, digits, '.', '_' and '-', got {name!r}")
    with intent(storage, f"tag {name}"):
        manifest.read(storage, version)
        if storage.exists(f"{folder_of(name)}/manifest.json"):
            raise ValueError(f"a tag must have another name than all versions, got {name!r}: choose another")
        before = storage.read_tagged(_path(name))
        data = json.dumps({"version": version, "nonce": uuid.uuid4().hex}).encode()
        storage.swap(_path(name), data, before.tag if before else None)


def untag(storage: Storage, name: str) -> None:
    """Delete a tag; its version stays.

    Raises:
        NotFoundError: if there is no such tag.
    """
    known = listed(storage)
    if name not in known:
        names = ", ".join(known) or f"the tags of {storage}, which has none"
        raise NotFoundError(f"tag must be one of {names}, got {name!r}")
    storage.delete(_path(name))


def listed(storage: Storage) -> dict[str, str]:
    """The version of each tag, sorted by tag.

    Raises:
        DamagedError: if a tag cannot be read.
    """
    names = (file.removesuffix(".json") for file in storage.list(FOLDER) if file.endswith(".json"))
    return {name: _version_of(storage, name) for name in names}


def resolved(storage: Storage, name: str) -> str:
    """The version that a name stands for: the one of this name, or the one that has it as a tag. A name of neither is
    returned as it is.

    Raises:
        DamagedError: if the tag cannot be read.
    """
    if not NAME.fullmatch(name) or storage.exists(f"{folder_of(name)}/manifest.json"):
        return name
    return _version_of(storage, name) if storage.exists(_path(name)) else name


def _version_of(storage: Storage, name: str) -> str:
    version = read_json(storage, _path(name)).get("version")
    if not isinstance(version, str):
        raise DamagedError(f"{storage}/{_path(name)} must name a version, got {version!r}: tag the version again")
    return version


def _path(name: str) -> str:
    return f"{FOLDER}/{name}.json"
