"""The description of a version: its files, and what they hold. `manifest` reads and writes it.

A checksum covers all fields, so that one that was changed is noticed.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from rails_ray.storage.parquet import StateEntry

FORMAT = 6
WEIGHTS = "model.safetensors"
LATER = frozenset(  # fields that format 5 lacks; left out where they are None, so that its checksums stay
    (
        "delta",
        "hidden",
        "base",
        "attributes",
        "balance",
        "data_sha256",
        "watermark",
        "parent",
        "published_by",
        "made_by",
    )
)


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file of a version. Its path is relative to the version's folder, or to the storage's root for `objects/...`."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class HiddenEntry(FileEntry):
    """A file with the rows of a part whose items are hidden, as they were deleted or have a newer row in a delta."""

    num_items: int


@dataclass(frozen=True, kw_only=True)
class PartEntry(FileEntry):
    """A part of shard `shard` that holds items first_row .. first_row + num_items - 1 of the corpus.

    delta: number of the delta that added it, from 1 on; None for the base, which alone is in the shard's indexes.
    hidden: its hidden rows; None if there are none.
    """

    shard: int
    first_row: int
    num_items: int
    delta: int | None = None
    hidden: HiddenEntry | None = None

    @property
    def num_live(self) -> int:
        """Number of items that are not hidden."""
        return self.num_items - (0 if self.hidden is None else self.hidden.num_items)


@dataclass(frozen=True, kw_only=True)
class IndexEntry(FileEntry):
    """The index of a shard, which `faiss.read_index` opens.

    name: what it indexes: `average`, or `component-0` and so on.
    error: how far a score of a query of length 1 may be from that of the stored vector.
    """

    shard: int
    name: str
    error: float


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Record of what encoding has written, before publishing. A shard holds consecutive item rows: those of its base,
    then those of its deltas.

    num_items, shard_items: rows of items, in all and of each shard; some of them may be hidden.
    query: the fields that a query may have (text, history, user_id), each with the type of its ids or text.
    columns: name and Arrow type of the parts' columns.
    state: how the parts store the state of items.
    files: the files beside the parts.
    cutoff_mass: default mass of the per-query cut-off; None if the model has no trained tau_q.
    indexes: the indexes of all shards, if items have other than flat ones.
    base: the version in whose folder the files beside the parts are; None for its own.
    attributes: name and kind (`storage.attributes`) of the columns that filters may name; None without any.
    balance: sum of digests of the ids of all items that are not hidden (`storage.balance`); formats below 6 have none.
    data_sha256: digest of the items that were encoded.
    watermark: the files of the data that were read (`storage.watermarks`); None if nobody noted them.
    """

    version: str
    run: str
    num_items: int
    shard_items: list[int]
    query: dict[str, str]
    columns: dict[str, str]
    state: StateEntry
    parts: list[PartEntry]
    files: list[FileEntry]
    cutoff_mass: float | None
    indexes: list[IndexEntry] = field(default_factory=list)
    base: str | None = None
    attributes: dict[str, str] | None = None
    balance: str | None = None
    data_sha256: str | None = None
    watermark: FileEntry | None = None

    @property
    def home(self) -> str:
        """The version in whose folder the files beside the parts are."""
        return self.base or self.version

    @property
    def entries(self) -> list[FileEntry]:
        """All of its files."""
        hidden = (part.hidden for part in self.parts if part.hidden is not None)
        watermarks = [] if self.watermark is None else [self.watermark]
        return [*self.parts, *hidden, *self.indexes, *self.files, *watermarks]

    def first_row(self, shard: int) -> int:
        """The first row of a shard."""
        return sum(self.shard_items[:shard])

    @property
    def live_items(self) -> list[int]:
        """Number of items of each shard that are not hidden."""
        live = [0] * len(self.shard_items)
        for part in self.parts:
            live[part.shard] += part.num_live
        return live

    @property
    def num_live(self) -> int:
        """Number of items that are not hidden."""
        return sum(part.num_live for part in self.parts)

    @property
    def num_deltas(self) -> int:
        """Number of deltas since the base that have an item that is not hidden."""
        return len({part.delta for part in self.parts if part.num_live} - {None})

    def has_file(self, name: str) -> bool:
        """Return whether there is such a file beside the parts."""
        return any(entry.path == name for entry in self.files)

    def file(self, name: str) -> FileEntry:
        """The entry of a file beside the parts."""
        return next(entry for entry in self.files if entry.path == name)

    @property
    def sha256(self) -> str:
        """Checksum of all fields, different for every version: 64 hex digits."""
        return checksum_of(fields_of(self))

    @property
    def contents_sha256(self) -> str:
        """Checksum of what was encoded; it stays the same if the manifest is rewritten: 64 hex digits."""
        fields, encoded = fields_of(self), {field.name for field in dataclasses.fields(Encoded)}
        return checksum_of({name: value for name, value in fields.items() if name in encoded})

    @property
    def weights(self) -> list[FileEntry]:
        """The entries of the model's weights: one, or one per chunk."""
        return [entry for entry in self.files if PurePosixPath(entry.path).name == WEIGHTS]


@dataclass(frozen=True, kw_only=True)
class Manifest(Encoded):
    """A published version.

    parent: the version that a delta or a compaction began from; None for one that was encoded anew.
    published_by: user and machine, as far as the machine says.
    made_by: version of rails-ray.
    """

    created_at: str
    format: int = FORMAT
    parent: str | None = None
    published_by: str | None = None
    made_by: str | None = None


def fields_of(value: Encoded) -> dict[str, Any]:
    """All fields as JSON has them."""
    return dataclasses.asdict(
        value, dict_factory=lambda pairs: {name: own for name, own in pairs if own is not None or name not in LATER}
    )


def checksum_of(fields: Mapping[str, Any]) -> str:
    """The sha256 of fields as JSON: 64 hex digits."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
