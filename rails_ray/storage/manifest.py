"""An index version: an immutable folder, and a manifest that publishing writes.

The manifest names every file with its checksum, and every reader checks the bytes that it reads. The manifest also
holds a checksum of its own fields, and so does the record of what was encoded.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage.described import (
    FORMAT,
    Encoded,
    FileEntry,
    HiddenEntry,
    IndexEntry,
    Manifest,
    PartEntry,
    checksum_of,
    fields_of,
)
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.parquet import StateEntry

READABLE = (5, FORMAT)  # 5 knows neither deltas nor attributes
Described = TypeVar("Described", bound=Encoded)
OBJECTS = "objects"  # folder of the files that are named by their content, which versions share
CONFIG = "config.json"
ITEMS, HISTORIES = "items.parquet", "histories.parquet"  # beside these, if the query encoder reads histories
QUERY_ENCODER = "query_encoder.json"  # beside these, if queries are vectors and a model reads texts as queries
NO_RUN = "none"  # the run of a version of vectors, for which nothing was trained
POPULAR = "popular.parquet"  # the most popular items, if queries are histories; earlier releases stored none


def describe(path: str, data: bytes) -> FileEntry:
    """The entry for a file with these bytes."""
    return FileEntry(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def folder_of(version: str) -> str:
    return f"versions/{version}"


def location(version: str, entry: FileEntry) -> str:
    """Where a file of a version lies in storage."""
    return entry.path if entry.path.startswith(f"{OBJECTS}/") else f"{folder_of(version)}/{entry.path}"


def write_object(storage: Storage, data: bytes) -> FileEntry:
    """Write a file that is named by its content. If it exists, it is written again, in case it is damaged."""
    digest = hashlib.sha256(data).hexdigest()
    path = f"{OBJECTS}/{digest}"
    storage.write(path, data)
    return FileEntry(path=path, size_bytes=len(data), sha256=digest)


def write_encoded(storage: Storage, encoded: Encoded) -> None:
    storage.write(f"{folder_of(encoded.version)}/encoded.json", to_json(encoded))


def read_encoded(storage: Storage, version: str) -> Encoded:
    """Raises:
    NotFoundError: if nothing was encoded under this name.
    DamagedError: if its record was changed.
    """
    path = f"{folder_of(version)}/encoded.json"
    if not NAME.fullmatch(version) or not storage.exists(path):
        raise NotFoundError(f"version must be one that `rails-ray encode` has finished in {storage}, got {version!r}")
    return _parse(storage, path, Encoded, version, "encode a new version")


def read(storage: Storage, version: str) -> Manifest:
    """The manifest of a published version.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if the manifest cannot be read, was changed, or belongs to another version.
    """
    path = f"{folder_of(version)}/manifest.json"
    if not NAME.fullmatch(version) or not storage.exists(path):
        published = [name for name in storage.list("versions") if storage.exists(f"{folder_of(name)}/manifest.json")]
        known = ", ".join(published) or f"the published versions of {storage}, which has none"
        raise NotFoundError(f"version must be one of {known}, got {version!r}")
    return _parse(storage, path, Manifest, version, rewriting(version))


def read_file(storage: Storage, version: str, entry: FileEntry) -> bytes:
    """The bytes of a file of a version.

    Raises:
        DamagedError: if the file is missing or its bytes differ from the manifest.
    """
    return read_array(storage, version, entry).tobytes()


def read_array(storage: Storage, version: str, entry: FileEntry, place: int = 0) -> NDArray[np.uint8]:
    """The bytes of a large file of a version, of which that at `place` lies at a multiple of 64 in memory. Raises what
    `read_file` does."""
    try:
        data, sha256 = storage.read_hashed(location(version, entry), place)
    except NotFoundError:
        raise DamagedError(
            f"version {version} must hold {entry.path}, got no such file: encode and publish a new version"
        ) from None
    if sha256 != entry.sha256:
        raise DamagedError(
            f"{entry.path} of version {version} must have the sha256 of its manifest, {entry.sha256[:12]}, "
            f"got {sha256[:12]} ({len(data)} of {entry.size_bytes} bytes): encode and publish a new one"
        )
    return data


def point_to(storage: Storage, path: str, name: str) -> None:
    """Make a file the current one of its kind, at `path`."""
    storage.write(path, json.dumps({"file": name}).encode())


def pointed_file(storage: Storage, path: str, again: str) -> str | None:
    """The name of the current file of a kind; None if there is none.

    Args:
        again: how to make another, for the message.

    Raises:
        DamagedError: if `path` cannot be read.
    """
    if not storage.exists(path):
        return None
    try:
        name = read_json(storage, path).get("file")
    except DamagedError:
        name = None
    if not isinstance(name, str):
        raise DamagedError(f"{storage}/{path} must name a file, got {name!r}: {again}")
    return name


def check_rows(encoded: Encoded) -> None:
    """Check that the parts cover rows 0 to the last without gap or overlap, each within its shard.

    Raises:
        DamagedError: if an item row is missing or occurs twice.
    """
    expected = 0
    ends = [sum(encoded.shard_items[: shard + 1]) for shard in range(len(encoded.shard_items))]
    for part in sorted(encoded.parts, key=lambda part: part.first_row):
        if part.first_row != expected:
            what = "missing" if part.first_row > expected else "there twice"
            raise DamagedError(
                f"version {encoded.version} must hold every item once, got item row {min(expected, part.first_row)} "
                f"{what}: encode a new version"
            )
        expected += part.num_items
        if expected > ends[part.shard]:
            raise DamagedError(f"part {part.path} must end within shard {part.shard}, got item row {expected - 1}")
    if expected != encoded.num_items:
        raise DamagedError(
            f"version {encoded.version} must hold {encoded.num_items} items, got {expected}: encode a new version"
        )


def rewriting(version: str) -> str:
    """The remedy for a damaged manifest."""
    return f"rewrite it with `rails-ray publish --version {version}`"


def to_json(value: Encoded) -> bytes:
    """All fields and their checksum."""
    fields = fields_of(value)
    return json.dumps({**fields, "sha256": checksum_of(fields)}, indent=1, ensure_ascii=False).encode()


def read_json(storage: Storage, path: str) -> dict[str, Any]:
    """Raises:
    NotFoundError: if there is no such file.
    DamagedError: if it holds no JSON object.
    """
    return json_object(storage.read(path), f"{storage}/{path}")


def json_object(data: bytes, file: str) -> dict[str, Any]:
    """Raises:
    DamagedError: if the bytes of `file` are no JSON object.
    """
    try:
        value = json.loads(data)
    except ValueError:
        raise DamagedError(f"{file} must be JSON, got something else: write it again or restore it") from None
    if not isinstance(value, dict):
        raise DamagedError(f"{file} must be a JSON object, got {type(value).__name__}: write it again or restore it")
    return value


def _parse(storage: Storage, path: str, kind: type[Described], version: str, remedy: str) -> Described:
    value = read_json(storage, path)
    if kind is Manifest and (made_in := value.get("format")) not in READABLE:
        is_newer = isinstance(made_in, int) and made_in > FORMAT
        raise DamagedError(
            f"{storage}/{path} must be of format {' or '.join(map(str, READABLE))}, got {made_in!r}: "
            + ("update rails-ray, as a newer one wrote it" if is_newer else "encode and publish it again")
        )
    named, found = value.pop("sha256", None), checksum_of(value)
    if named != found:
        named_digest = named[:12] if isinstance(named, str) else "none"
        raise DamagedError(
            f"{storage}/{path} must name the sha256 of its other fields, {found[:12]}, got {named_digest}: {remedy}"
        )
    if value.get("version") != version:
        raise DamagedError(f"{storage}/{path} must be of version {version}, got {value.get('version')!r}: {remedy}")
    try:
        value["parts"] = [_part(part) for part in value["parts"]]
        value["state"] = StateEntry(**value["state"])
        value["files"] = [FileEntry(**entry) for entry in value["files"]]
        value["indexes"] = [IndexEntry(**entry) for entry in value["indexes"]]
        watermark = value.get("watermark")
        value["watermark"] = None if watermark is None else FileEntry(**watermark)
        return kind(**value)
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{storage}/{path} must have the fields of {kind.__name__}, got: {error}") from None


def _part(fields: dict[str, Any]) -> PartEntry:
    hidden = fields.get("hidden")
    return PartEntry(**{**fields, "hidden": None if hidden is None else HiddenEntry(**hidden)})


def summary(manifest: Manifest) -> Mapping[str, Any]:
    """The facts of a version that a client may see."""
    return {
        "version": manifest.version,
        "run": manifest.run,
        "created_at": manifest.created_at,
        "num_items": manifest.num_live,
        "num_shards": len(manifest.shard_items),
        "query": manifest.query,
        "columns": manifest.columns,
        "attributes": manifest.attributes or {},
        "cutoff_mass": manifest.cutoff_mass,
    }
