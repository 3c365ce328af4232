"""Which versions exist and which is current: publish, list, verify, roll back.

The order of writing is the protocol: parts and weights, then `manifest.json`, then the pointer CURRENT, each in one
atomic write. If a writer dies, no manifest names its files, and the former version stays current. The pointer is
replaced only if it has not changed since it was read: if two publish at once, one wins and the other gets an error. The
pointer holds the sha256 of its manifest, so that no other manifest can replace that one.
"""

import dataclasses
import io
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow.parquet as pq

from rails_ray import __version__
from rails_ray.errors import ConflictError, DamagedError, NotFoundError
from rails_ray.storage import manifest, tags
from rails_ray.storage.described import Encoded, FileEntry, Manifest, PartEntry
from rails_ray.storage.expiring import this_user
from rails_ray.storage.filesystem import NAME, Storage, Tagged
from rails_ray.storage.intents import intent
from rails_ray.storage.manifest import folder_of, location

CURRENT = "CURRENT"


class Pointer(NamedTuple):
    """
    sha256: sha256 of the manifest of `version`; None if the pointer does not say.
    previous: the version that was current before; None if there was none.
    nonce: another one after each write but an announcement; None if the pointer does not say.
    """

    version: str
    sha256: str | None
    previous: str | None
    nonce: str | None


@dataclass(frozen=True)
class Listed:
    """A version in a listing; `state` is current, published, encoded, encoding or damaged."""

    version: str
    state: str
    described: Encoded | None


def publish(
    storage: Storage, encoded: Encoded, created_at: str, on_file: Callable[[int, int], None] = lambda done, total: None
) -> Manifest:
    """Check that every item occurs once and every byte is unchanged, then write the manifest and make it current.

    A version that was published before becomes current again. It keeps its manifest unless that is damaged.

    Args:
        on_file: called with (files checked, all files).

    Raises:
        DamagedError: if a file is missing or changed, or an item row is missing or occurs twice.
        ConflictError: if another version was published in the meantime.
        StorageError: if the storage cannot guarantee that only one of two publishers wins.
    """
    storage.check_conditional()
    with intent(storage, f"publish {encoded.version}", CURRENT) as before:
        manifest.check_rows(encoded)
        files = encoded.entries
        for done, entry in enumerate(files, start=1):
            check_file(storage, encoded, entry)
            on_file(done, len(files))
        made = _made_to_exist(storage, described_as(encoded, created_at))
        _point(storage, made, before)
    return made


def described_as(encoded: Encoded, created_at: str, parent: str | None = None) -> Manifest:
    """The manifest of what was encoded.

    Args:
        parent: the version that it began from, if any.
    """
    fields = {field.name: getattr(encoded, field.name) for field in dataclasses.fields(Encoded)}
    return Manifest(**fields, created_at=created_at, parent=parent, published_by=this_user(), made_by=__version__)


def publish_change(
    storage: Storage,
    made: Manifest,
    before: Tagged | None,
    approve: Callable[[Manifest], None] = lambda made: None,
) -> Manifest:
    """Write the manifest of a version that shares files with its parent, and make it current. Files that the parent has
    are not read again.

    Args:
        before: the pointer as it was when the parent was read, inside an `intent`.
        approve: called once the version can be opened by its name, and before it is current; raises if it must not be.

    Raises:
        DamagedError: if a file of its own is missing or changed, or an item row is missing or occurs twice.
        ConflictError: if another version was published in the meantime.
    """
    manifest.check_rows(made)
    assert made.parent is not None
    parent = manifest.read(storage, made.parent)
    shared = {location(parent.home, entry) for entry in parent.entries}
    for entry in made.entries:
        if location(made.home, entry) not in shared:
            check_file(storage, made, entry)
    storage.create(f"{folder_of(made.version)}/manifest.json", manifest.to_json(made))
    approve(made)
    _point(storage, made, before)
    return made


def _made_to_exist(storage: Storage, made: Manifest) -> Manifest:
    """Write the manifest of a version unless an equal one exists. Returns the one that is now stored."""
    path, data = f"{folder_of(made.version)}/manifest.json", manifest.to_json(made)
    try:
        storage.create(path, data)
        return made
    except ConflictError:
        before = storage.read_tagged(path)
    with suppress(DamagedError):
        found = manifest.read(storage, made.version)
        if found.contents_sha256 == made.contents_sha256:
            return found
    try:
        storage.swap(path, data, before.tag if before else None)
        return made
    except ConflictError:  # another publisher of this version was first
        return manifest.read(storage, made.version)


def rollback(storage: Storage, version: str | None = None) -> Manifest:
    """Make an earlier version current again, by one write.

    Args:
        version: a published version or its tag; by default the one that was current before.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if its manifest is damaged.
        ConflictError: if another version was published in the meantime.
    """
    storage.check_conditional()
    with intent(storage, "rollback", CURRENT) as before:
        if version is None:
            version = before and _pointer(storage, before).previous
            if version is None:
                raise NotFoundError("a version must have been current before to roll back to it, got none: name one")
        found = manifest.read(storage, tags.resolved(storage, version))
        _check_named(storage, found, _pointer_if_whole(storage, before))
        _point(storage, found, before)
    return found


def renew_pointer(storage: Storage) -> None:
    """Write the pointer anew with the same meaning, so that nobody replaces it who read it before.

    Raises:
        NotFoundError: if nothing was published.
        DamagedError: if the pointer cannot be read.
    """
    before = _read_pointer(storage)
    pointer = {**_pointer(storage, before)._asdict(), "nonce": uuid.uuid4().hex}
    with suppress(ConflictError):  # someone else replaced it, which does the same
        storage.swap(CURRENT, json.dumps(pointer).encode(), before.tag)


def announce(storage: Storage, version: str) -> None:
    """Let servers that follow look again at a version, of which a file beside the manifest is new, if it is current.
    Who read the pointer before may replace it all the same."""
    with suppress(NotFoundError, DamagedError, ConflictError):  # nobody follows it, or all look again anyway
        before = _read_pointer(storage)
        pointer = _pointer(storage, before)
        if pointer.version == version:
            data = json.dumps({**pointer._asdict(), "announced": uuid.uuid4().hex}).encode()
            storage.swap(CURRENT, data, before.tag)


def _point(storage: Storage, made: Manifest, before: Tagged | None) -> None:
    """Make a version current if the pointer is unchanged but for announcements, or already names this version.

    Raises:
        ConflictError: if the pointer was written by others.
    """
    pointed = _pointer_if_whole(storage, before)
    former = pointed and pointed.version
    if pointed and former == made.version:  # published again: keep the same way back
        former = pointed.previous
    # The nonce identifies this write even if its answer is lost.
    pointer = {"version": made.version, "sha256": made.sha256, "previous": former, "nonce": uuid.uuid4().hex}
    while True:
        try:
            storage.swap(CURRENT, json.dumps(pointer).encode(), before.tag if before else None)
            return
        except ConflictError:
            before = _read_pointer(storage)
        current = _pointer(storage, before)
        if current.version == made.version:
            return
        if current != pointed:
            raise ConflictError(
                f"no other version may become current while {made.version} is published, got {current.version}: "
                f"{made.version} is stored but not current; publish it again to make it current"
            )


def current_version(storage: Storage) -> str:
    """Raises:
    NotFoundError: if nothing was published.
    DamagedError: if the pointer cannot be read.
    """
    return read_pointer(storage).version


def read_pointer(storage: Storage) -> Pointer:
    """Which version is current, and which was before.

    Raises:
    NotFoundError: if nothing was published.
    DamagedError: if the pointer cannot be read.
    """
    return _pointer(storage, _read_pointer(storage))


def _read_pointer(storage: Storage) -> Tagged:
    found = storage.read_tagged(CURRENT)
    if found is None:
        raise NotFoundError(f"storage must hold a published version, got none in {storage}: run `rails-ray publish`")
    return found


def _pointer(storage: Storage, found: Tagged) -> Pointer:
    """Raises:
    DamagedError: if the bytes are no pointer.
    """
    value = manifest.json_object(found.data, f"{storage}/{CURRENT}")
    version = value.get("version")
    if not isinstance(version, str):
        raise DamagedError(f"{storage}/{CURRENT} must name a version, got {version!r}: publish again")
    texts = {name: text for name, text in value.items() if isinstance(text, str)}
    return Pointer(version, *(texts.get(name) for name in ("sha256", "previous", "nonce")))


def _pointer_if_whole(storage: Storage, found: Tagged | None) -> Pointer | None:
    with suppress(DamagedError):
        return found and _pointer(storage, found)
    return None


def _check_named(storage: Storage, found: Manifest, pointed: Pointer | None) -> None:
    """Raises:
    DamagedError: if the pointer names this version but another manifest.
    """
    if pointed is None or pointed.version != found.version or pointed.sha256 is None:
        return
    if pointed.sha256 != found.sha256:
        raise DamagedError(
            f"{storage}/{folder_of(found.version)}/manifest.json must be the manifest that {CURRENT} names, "
            f"{pointed.sha256[:12]}, got {found.sha256[:12]}: {manifest.rewriting(found.version)}"
        )


def read_manifest(storage: Storage, version: str | None = None) -> Manifest:
    """The manifest of a version, which a tag may name, or of the current one.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if the manifest is damaged, or is not the one that the pointer names.
    """
    if version is None:
        pointed = read_pointer(storage)
        found = manifest.read(storage, pointed.version)
        _check_named(storage, found, pointed)
    else:
        found = manifest.read(storage, tags.resolved(storage, version))
        _check_named(storage, found, _pointer_if_whole(storage, storage.read_tagged(CURRENT)))
    return found


def current(storage: Storage) -> Manifest | None:
    """The current version; None if nothing was published."""
    try:
        return read_manifest(storage)
    except NotFoundError:
        return None


def read_described(storage: Storage, version: str | None = None) -> Encoded:
    """The manifest of a version, or of the current one; for an unpublished version, the record of its encoding.

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
    """All versions, published or not, sorted by name, without folders that hold no record of one."""
    pointed = _pointer_if_whole(storage, storage.read_tagged(CURRENT))
    found = (_listed(storage, name, pointed) for name in storage.list("versions") if NAME.fullmatch(name))
    return [own for own in found if own is not None]


def _listed(storage: Storage, version: str, pointed: Pointer | None) -> Listed | None:
    folder = folder_of(version)
    try:
        if storage.exists(f"{folder}/manifest.json"):
            found = manifest.read(storage, version)
            _check_named(storage, found, pointed)
            return Listed(version, "current" if pointed and version == pointed.version else "published", found)
        if storage.exists(f"{folder}/encoded.json"):
            return Listed(version, "encoded", manifest.read_encoded(storage, version))
    except DamagedError:
        return Listed(version, "damaged", None)
    return Listed(version, "encoding", None) if storage.exists(f"{folder}/begun.json") else None


def damages(storage: Storage, described: Encoded) -> Iterator[str | None]:
    """For each file of a version one sentence on its damage, or None."""
    for entry in described.entries:
        try:
            check_file(storage, described, entry)
            yield None
        except DamagedError as error:
            yield str(error)


def check_file(storage: Storage, described: Encoded, entry: FileEntry) -> None:
    """Raises:
    DamagedError: if a file is missing or changed, or a part holds the wrong number of items.
    """
    data = manifest.read_file(storage, described.home, entry)
    if isinstance(entry, PartEntry):
        num_rows = pq.read_metadata(io.BytesIO(data)).num_rows
        if num_rows != entry.num_items:
            raise DamagedError(
                f"{entry.path} of version {described.version} must hold {entry.num_items} items, got {num_rows}: "
                "encode a new version"
            )
