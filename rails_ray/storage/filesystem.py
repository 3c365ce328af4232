"""One object for all reading and writing: bytes under a root, each file written whole or not at all."""

import builtins
import io
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from rails_ray.errors import ConflictError, NotFoundError
from rails_ray.optional import optional
from rails_ray.storage.local import LocalFiles
from rails_ray.storage.remote import keep_direct

# Variables of the environment that name who may read and write.
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a run or a version: it names a folder


def timed_name(what: str) -> str:
    """A name for a run or a version without a given name."""
    return f"{what}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


class Tagged(NamedTuple):
    """A file's bytes, and the tag of this state of the file."""

    data: bytes
    tag: str


class Hashed(NamedTuple):
    """A file's bytes, in memory for which numpy asks the system for large pages, and their sha256."""

    data: NDArray[np.uint8]
    sha256: str


class Opened(NamedTuple):
    """A file to read from at any place, and a tag of the state in which it was opened.

    The tag is cheap: it tells a change of the file's length, or of the time at which it was written.
    """

    file: io.RawIOBase
    tag: str


class Files(Protocol):
    """Contract of a kind of storage. Its paths are already checked. `Storage` turns its refusals into messages."""

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes | None:
        """None if there is no such file."""

    def read_tagged(self, path: str) -> tuple[bytes, str] | None:
        """Bytes and tag of the same state; None if there is no such file."""

    def read_hashed(self, path: str, place: int) -> tuple[NDArray[np.uint8], str] | None:
        """Bytes, of which that at `place` is aligned, and their sha256; None if there is no such file."""

    def open(self, path: str) -> tuple[io.RawIOBase, str] | None:
        """A file to read from at any place, and a tag of its state; None if there is no such file."""

    def write(self, path: str, data: bytes) -> None: ...

    def copy(self, source: str, target: str) -> int | None:
        """Write the bytes of one file to another; returns how many, None if there is no such file."""

    def create(self, path: str, data: bytes) -> bool:
        """Write unless the file exists; returns whether it was written."""

    def swap(self, path: str, data: bytes, tag: str) -> bool:
        """Write if the file is in state `tag`; returns whether it was written."""

    def sizes(self, path: str) -> dict[str, int]:
        """The bytes of each file in a folder and in those below it, without names that start with a dot."""

    def list(self, path: str) -> list[str]: ...

    def delete(self, path: str) -> None: ...

    def check_conditional(self) -> None: ...


class Storage:
    """Files by their path relative to a root: a local folder or its `file://` URL, `s3://bucket[/prefix]` (also `s3a://`
    and `s3n://`), `az://container[/prefix]` or `gs://bucket[/prefix]`.

    A reader sees either the old bytes or the new ones. Every failure of the storage itself is a `StorageError`.
    A file that is ever swapped must be changed only by `create` and `swap`, and its bytes should hold a nonce: if an
    answer is lost on the network, the bytes tell whether the write was ours.
    """

    def __init__(self, root: str) -> None:
        """Makes no network request.

        Raises:
        ValueError: if `root` is another kind of URL, contains credentials, or names a file.
        """
        self.files: Files
        scheme, separator, rest = root.partition("://")
        scheme = "s3" if scheme in ("s3a", "s3n") else scheme  # Hadoop's names
        if not separator:
            self.files = LocalFiles(root)
        elif scheme == "file":
            self.files = LocalFiles(local_path(root))
        elif scheme == "s3":
            _needs("s3fs", scheme)
            keep_direct()
            from rails_ray.storage.s3 import S3Files

            self.files = S3Files(*_bucket_and_prefix(scheme, rest))
        elif scheme in ("az", "gs"):
            _needs("obstore", scheme)
            keep_direct()
            from rails_ray.storage.object_store import ObjectStoreFiles

            self.files = ObjectStoreFiles(scheme, *_bucket_and_prefix(scheme, rest), CREDENTIALS[scheme])
        else:
            raise ValueError(
                "storage must be a local folder, file:///folder, s3://bucket/prefix, az://container/prefix or "
                f"gs://bucket/prefix, got {scheme}://..."
            )

    def __str__(self) -> str:
        return str(self.files)

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""
        return self.files.exists(_to_file(path))

    def read(self, path: str) -> bytes:
        """Raises:
        NotFoundError: if there is no such file.
        """
        data = self.files.read(_to_file(path))
        if data is None:
            raise self._missing(path)
        return data

    def read_hashed(self, path: str, place: int = 0) -> Hashed:
        """A large file, which is hashed while it is read.

        Args:
            place: byte of the file that is to lie at a multiple of 64 in memory.

        Raises:
            NotFoundError: if there is no such file.
        """
        found = self.files.read_hashed(_to_file(path), place)
        if found is None:
            raise self._missing(path)
        return Hashed(*found)

    @contextmanager
    def open(self, path: str) -> Iterator[Opened]:
        """A file to read some of, inside the block.

        Raises:
        NotFoundError: if there is no such file.
        """
        found = self.files.open(_to_file(path))
        if found is None:
            raise self._missing(path)
        with found[0]:
            yield Opened(*found)

    def _missing(self, path: str) -> NotFoundError:
        return NotFoundError(f"{self}/{path} must exist, got no such file")

    def read_tagged(self, path: str) -> Tagged | None:
        """The bytes with the tag that `swap` takes; None if there is no such file."""
        found = self.files.read_tagged(_to_file(path))
        return Tagged(*found) if found else None

    def write(self, path: str, data: bytes) -> None:
        self.files.write(_to_file(path), data)

    def copy(self, source: str, target: str) -> int:
        """Write the bytes of one file to another, without reading them here. Returns how many they are.

        Raises:
            NotFoundError: if there is no such file.
        """
        size = self.files.copy(_to_file(source), _to_file(target))
        if size is None:
            raise self._missing(source)
        return size

    def create(self, path: str, data: bytes) -> None:
        """Write a new file.

        Raises:
        ConflictError: if the file exists.
        """
        if not self.files.create(_to_file(path), data):
            raise ConflictError(f"{self}/{path} must not exist yet, got a file that someone else wrote first")

    def swap(self, path: str, data: bytes, tag: str | None) -> None:
        """Replace the file if it is in state `tag`; None stands for no file.

        Raises:
        ConflictError: if the file is in another state.
        """
        if tag is None:
            self.create(path, data)
        elif not self.files.swap(_to_file(path), data, tag):
            raise ConflictError(
                f"{self}/{path} must still be as it was read, got a change that someone else wrote first: read it again"
            )

    def walk(self, path: str) -> list[str]:
        """Sorted paths of the files in a folder and in those below it, without names that start with a dot."""
        return sorted(self.sizes(path))

    def sizes(self, path: str) -> dict[str, int]:
        """The bytes of each of these files, by path."""
        return self.files.sizes(_down(path))

    def list(self, path: str) -> builtins.list[str]:
        """Sorted names in a folder, without those that start with a dot; empty if there is no folder."""
        return self.files.list(_down(path))

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        self.files.delete(_to_file(path))

    def check_conditional(self) -> None:
        """Write and delete a probe file, to fail before hours of work rather than after.

        Raises:
            NotFoundError: if there is no such bucket.
            StorageError: if the storage cannot be written to, or ignores the conditions of `create` and `swap`, so that
                two writers could both win.
        """
        self.files.check_conditional()


def _needs(package: str, scheme: str) -> None:
    optional(package, needed_by=f"storage {scheme}://..", package=package, install="'rails-ray[clouds]'")


def local_path(place: str) -> str:
    """Return the path of a file:// URL, in which %20 and its like stand for characters; any other place as it is.

    Raises:
        ValueError: if it names a machine.
    """
    if not place.startswith("file://"):
        return place
    parts = urlsplit(place, allow_fragments=False)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ValueError(f"storage must be file:///folder, with three slashes, got {place}")
    return unquote(parts.path + (f"?{parts.query}" if parts.query else ""))


def _bucket_and_prefix(scheme: str, rest: str) -> tuple[str, str]:
    """Bucket and prefix of `scheme://rest`. The messages do not repeat `rest`: it may hold a secret."""
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or ":" in bucket:
        raise ValueError(
            f"storage must be {scheme}://bucket/prefix without credentials, got some: remove them and set "
            f"{CREDENTIALS[scheme]}"
        )
    if "?" in rest:
        raise ValueError(
            f"storage must be {scheme}://bucket/prefix without a query, got one: set the endpoint by its variable in "
            "the environment"
        )
    if not re.fullmatch(r"[A-Za-z0-9._-]+", bucket) or ".." in prefix.split("/"):
        raise ValueError(f"storage must be {scheme}://bucket/prefix, got an invalid bucket or prefix")
    return bucket, _down(prefix.lstrip("/"))


def _down(path: str) -> str:
    """The path as names with single slashes between them."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"a path in storage must be relative and lead down, got {path!r}")
    return "/".join(pure.parts)


def _to_file(path: str) -> str:
    if not (down := _down(path)):
        raise ValueError(f"a path in storage must name a file, got {path!r}")
    return down
