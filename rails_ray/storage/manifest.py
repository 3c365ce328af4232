"""Index versions: an immutable folder each, described by a manifest, one of them current.

Writing order is the protocol. Parts and weights come first, `manifest.json` after them, the pointer CURRENT last, each
in one atomic write. A writer that dies leaves files that no manifest names, and the former version current.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage.filesystem import NAME, Storage

FORMAT = 1
CURRENT = "CURRENT"
CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file of a version, its path relative to the version's folder."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class PartEntry(FileEntry):
    """A part of shard `shard` that holds items first_row .. first_row + num_items - 1 of the corpus."""

    shard: int
    first_row: int
    num_items: int


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """What encoding has written, before anything is published. A shard holds consecutive item rows.

    columns: name and Arrow type of the parts' columns.
    files: the files beside the parts.
    cutoff_mass: the default mass of the per-query cut-off; None where the model has no trained tau_q.
    """

    version: str
    run: str
    num_items: int
    shard_items: list[int]
    columns: dict[str, str]
    parts: list[PartEntry]
    files: list[FileEntry]
    cutoff_mass: float | None

    def file(self, name: str) -> FileEntry:
        """The entry of a file beside the parts."""
        return next(entry for entry in self.files if entry.path == name)


@dataclass(frozen=True, kw_only=True)
class Manifest(Encoded):
    """A published version."""

    created_at: str
    format: int = FORMAT


Described = TypeVar("Described", bound=Encoded)


def describe(path: str, data: bytes) -> FileEntry:
    """The entry of a file of these bytes."""
    return FileEntry(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def folder_of(version: str) -> str:
    return f"versions/{version}"


def even_shards(num_items: int, num_shards: int) -> list[int]:
    """Items of each shard: equal but for one, the larger ones first."""
    size, larger = divmod(num_items, num_shards)
    return [size + (shard < larger) for shard in range(num_shards)]


def check_new(storage: Storage, version: str) -> None:
    """Raises:
    ValueError: if the name cannot be that of a folder, or something is encoded under it already.
    """
    if not NAME.fullmatch(version):
        raise ValueError(f"version must be made of letters, digits, '.', '_' and '-', got {version!r}")
    if storage.exists(f"{folder_of(version)}/encoded.json"):
        raise ValueError(f"version must be a new name, got {version!r}, which {storage} holds already")


def write_encoded(storage: Storage, encoded: Encoded) -> None:
    storage.write(f"{folder_of(encoded.version)}/encoded.json", _to_json(encoded))


def read_encoded(storage: Storage, version: str) -> Encoded:
    """Raises:
    NotFoundError: if nothing was encoded under this name.
    """
    path = f"{folder_of(version)}/encoded.json"
    if not NAME.fullmatch(version) or not storage.exists(path):
        raise NotFoundError(f"version must be one that `rails-ray encode` has finished in {storage}, got {version!r}")
    return _parse(storage, path, Encoded)


def publish(storage: Storage, encoded: Encoded, created_at: str) -> Manifest:
    """Check that every item is there once and every byte is as written, then make the version exist and current.

    A version that was published before becomes current again.

    Raises:
        DamagedError: if a file is missing or changed, or an item row is missing or there twice.
    """
    _check_rows(encoded)
    for entry in (*encoded.parts, *encoded.files):
        read_file(storage, encoded.version, entry)
    manifest = Manifest(
        **{field.name: getattr(encoded, field.name) for field in dataclasses.fields(Encoded)}, created_at=created_at
    )
    storage.write(f"{folder_of(encoded.version)}/manifest.json", _to_json(manifest))
    storage.write(CURRENT, json.dumps({"version": encoded.version}).encode())
    return manifest


def current_version(storage: Storage) -> str:
    """Raises:
    NotFoundError: if nothing was published.
    DamagedError: if the pointer cannot be read.
    """
    if not storage.exists(CURRENT):
        raise NotFoundError(f"storage must hold a published version, got none in {storage}: run `rails-ray publish`")
    version = _json(storage, CURRENT).get("version")
    if not isinstance(version, str):
        raise DamagedError(f"{storage}/{CURRENT} must name a version, got {version!r}: publish again")
    return version


def read_manifest(storage: Storage, version: str | None = None) -> Manifest:
    """The manifest of a version, or of the current one.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if the manifest cannot be read.
    """
    version = version or current_version(storage)
    path = f"{folder_of(version)}/manifest.json"
    if not NAME.fullmatch(version) or not storage.exists(path):
        published = [name for name in storage.list("versions") if storage.exists(f"{folder_of(name)}/manifest.json")]
        raise NotFoundError(f"version must be one of {', '.join(published) or 'none published yet'}, got {version!r}")
    return _parse(storage, path, Manifest)


def read_file(storage: Storage, version: str, entry: FileEntry) -> bytes:
    """The bytes of a file of a version.

    Raises:
        DamagedError: if it is missing or its bytes are not those of the manifest.
    """
    path = f"{folder_of(version)}/{entry.path}"
    try:
        data = storage.read(path)
    except NotFoundError:
        raise DamagedError(
            f"version {version} must hold {entry.path}, got no such file: encode and publish a new version"
        ) from None
    found = describe(entry.path, data)
    if found.sha256 != entry.sha256:
        raise DamagedError(
            f"{entry.path} of version {version} must have the sha256 of its manifest, {entry.sha256[:12]}, "
            f"got {found.sha256[:12]} ({found.size_bytes} of {entry.size_bytes} bytes): encode and publish a new one"
        )
    return data


def _check_rows(encoded: Encoded) -> None:
    """Parts, in order, must continue each other from row 0 to the last, each within its shard."""
    expected = 0
    ends = [sum(encoded.shard_items[: shard + 1]) for shard in range(len(encoded.shard_items))]
    for part in sorted(encoded.parts, key=lambda part: part.first_row):
        if part.first_row != expected:
            what = "missing" if part.first_row > expected else "there twice"
            raise DamagedError(
                f"version {encoded.version} must hold every item once, got item row "
                f"{min(expected, part.first_row)} {what}: encode it again"
            )
        expected += part.num_items
        if expected > ends[part.shard]:
            raise DamagedError(f"part {part.path} must end within shard {part.shard}, got item row {expected - 1}")
    if expected != encoded.num_items:
        raise DamagedError(
            f"version {encoded.version} must hold {encoded.num_items} items, got {expected}: encode it again"
        )


def _to_json(value: Encoded) -> bytes:
    return json.dumps(dataclasses.asdict(value), indent=1, ensure_ascii=False).encode()


def _json(storage: Storage, path: str) -> dict[str, Any]:
    try:
        value = json.loads(storage.read(path))
    except ValueError:
        raise DamagedError(f"{storage}/{path} must be JSON, got something else: publish again") from None
    if not isinstance(value, dict):
        raise DamagedError(f"{storage}/{path} must be a JSON object, got {type(value).__name__}: publish again")
    return value


def _parse(storage: Storage, path: str, kind: type[Described]) -> Described:
    value = _json(storage, path)
    if kind is Manifest and value.get("format") != FORMAT:
        raise DamagedError(f"{storage}/{path} must be of format {FORMAT}, got {value.get('format')!r}")
    try:
        value["parts"] = [PartEntry(**part) for part in value["parts"]]
        value["files"] = [FileEntry(**entry) for entry in value["files"]]
        return kind(**value)
    except (KeyError, TypeError) as error:
        raise DamagedError(
            f"{storage}/{path} must have the fields of a {kind.__name__.lower()}, got: {error}"
        ) from None


def summary(manifest: Manifest) -> Mapping[str, Any]:
    """What a client may know of a version."""
    return {
        "version": manifest.version,
        "run": manifest.run,
        "created_at": manifest.created_at,
        "num_items": manifest.num_items,
        "num_shards": len(manifest.shard_items),
        "columns": manifest.columns,
        "cutoff_mass": manifest.cutoff_mass,
    }
