"""Which versions there are and which is current: publish, list, verify, roll back.

Writing order is the protocol: parts and weights, then `manifest.json`, then the pointer CURRENT, each in one atomic
write. A writer that dies leaves files that no manifest names, and the former version current. The pointer is replaced
only in the state in which it was read, so that of two publishers at once one wins and the other is told.
"""

import dataclasses
import io
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow.parquet as pq

from rails_ray.errors import ConflictError, DamagedError, NotFoundError, RailsRayError
from rails_ray.storage import manifest
from rails_ray.storage.filesystem import NAME, Storage, Tagged
from rails_ray.storage.manifest import Encoded, Manifest, PartEntry, folder_of

CURRENT = "CURRENT"


@dataclass(frozen=True)
class Listed:
    """A version as a listing shows it; `state` is current, published, encoded, encoding or damaged."""

    version: str
    state: str
    described: Encoded | None


def publish(
    storage: Storage, encoded: Encoded, created_at: str, on_file: Callable[[int, int], None] = lambda done, total: None
) -> Manifest:
    """Check that every item is there once and every byte is as written, then make the version exist and current.

    A version that was published before becomes current again.

    Args:
        on_file: called with the number of files checked, and of all.

    Raises:
        DamagedError: if a file is missing or changed, or an item row is missing or there twice.
        ConflictError: if another version was published in the meantime.
        StorageError: if the storage cannot promise that one of two publishers wins.
    """
    storage.check_conditional()
    before = storage.read_tagged(CURRENT)
    manifest.check_rows(encoded)
    files = [*encoded.parts, *encoded.files]
    for done, entry in enumerate(files, start=1):
        check_file(storage, encoded.version, entry)
        on_file(done, len(files))
    made = Manifest(
        **{field.name: getattr(encoded, field.name) for field in dataclasses.fields(Encoded)}, created_at=created_at
    )
    path = f"{folder_of(encoded.version)}/manifest.json"
    try:
        storage.create(path, manifest.to_json(made))
    except ConflictError:
        try:
            made = manifest.read(storage, encoded.version)
        except DamagedError:
            storage.write(path, manifest.to_json(made))
    _point(storage, encoded.version, before)
    return made


def rollback(storage: Storage, version: str | None = None) -> Manifest:
    """Make an earlier version current again, by one write.

    Args:
        version: a published one; by default the one that was current before the current one.

    Raises:
        NotFoundError: if there is no such version.
        ConflictError: if another version was published in the meantime.
    """
    storage.check_conditional()
    before = storage.read_tagged(CURRENT)
    if version is None:
        version = before and manifest.json_object(before.data, f"{storage}/{CURRENT}").get("previous")
        if not isinstance(version, str):
            raise NotFoundError("a version must have been current before to roll back to it, got none: name one")
    found = manifest.read(storage, version)
    _point(storage, version, before)
    return found


def _point(storage: Storage, version: str, before: Tagged | None) -> None:
    """Make `version` current, if the pointer is still what it was."""
    try:
        pointed = manifest.json_object(before.data, CURRENT) if before else {}
    except DamagedError:
        pointed = {}
    former = pointed.get("version")
    if former == version:  # published again: the way back is still the one there was
        former = pointed.get("previous")
    # The nonce tells this write from any other, also where its answer is lost on the way.
    pointer = {"version": version, "previous": former, "nonce": uuid.uuid4().hex}
    try:
        storage.swap(CURRENT, json.dumps(pointer).encode(), before.tag if before else None)
    except ConflictError:
        raise ConflictError(
            f"no other version may be published while {version} is, got {current_version(storage)}: {version} is whole "
            "but not current; publish it again to make it so"
        ) from None


def current_version(storage: Storage) -> str:
    """Raises:
    NotFoundError: if nothing was published.
    DamagedError: if the pointer cannot be read.
    """
    found = storage.read_tagged(CURRENT)
    if found is None:
        raise NotFoundError(f"storage must hold a published version, got none in {storage}: run `rails-ray publish`")
    version = manifest.json_object(found.data, f"{storage}/{CURRENT}").get("version")
    if not isinstance(version, str):
        raise DamagedError(f"{storage}/{CURRENT} must name a version, got {version!r}: publish again")
    return version


def read_manifest(storage: Storage, version: str | None = None) -> Manifest:
    """The manifest of a version, or of the current one.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if the manifest cannot be read.
    """
    return manifest.read(storage, version or current_version(storage))


def current(storage: Storage) -> Manifest | None:
    """The current version; None if nothing was published."""
    try:
        return read_manifest(storage)
    except NotFoundError:
        return None


def read_described(storage: Storage, version: str | None = None) -> Encoded:
    """The manifest of a version, or of the current one; of a version that is not published yet, what will be in it.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if the manifest cannot be read.
    """
    if version is not None and NAME.fullmatch(version):
        folder = folder_of(version)
        if storage.exists(f"{folder}/encoded.json") and not storage.exists(f"{folder}/manifest.json"):
            return manifest.read_encoded(storage, version)
    return read_manifest(storage, version)


def listed(storage: Storage) -> list[Listed]:
    """All versions, published or not, by name."""
    try:
        current = current_version(storage)
    except RailsRayError:
        current = None
    return [_listed(storage, name, current) for name in storage.list("versions") if NAME.fullmatch(name)]


def _listed(storage: Storage, version: str, current: str | None) -> Listed:
    folder = folder_of(version)
    try:
        if storage.exists(f"{folder}/manifest.json"):
            state = "current" if version == current else "published"
            return Listed(version, state, manifest.read(storage, version))
        if storage.exists(f"{folder}/encoded.json"):
            return Listed(version, "encoded", manifest.read_encoded(storage, version))
    except DamagedError:
        return Listed(version, "damaged", None)
    return Listed(version, "encoding", None)


def damages(storage: Storage, described: Encoded) -> Iterator[str | None]:
    """What is wrong with each file of a version, in a sentence; None where nothing is."""
    for entry in (*described.parts, *described.files):
        try:
            check_file(storage, described.version, entry)
            yield None
        except DamagedError as error:
            yield str(error)


def check_file(storage: Storage, version: str, entry: manifest.FileEntry) -> None:
    """Raises:
    DamagedError: if a file is missing or changed, or a part does not hold as many items as it should.
    """
    data = manifest.read_file(storage, version, entry)
    if isinstance(entry, PartEntry):
        num_rows = pq.read_metadata(io.BytesIO(data)).num_rows
        if num_rows != entry.num_items:
            raise DamagedError(
                f"{entry.path} of version {version} must hold {entry.num_items} items, got {num_rows}: "
                "encode a new version"
            )
