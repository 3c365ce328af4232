"""One object for all reading and writing: bytes under a root, each file written whole or not at all."""

import builtins
import re
import uuid
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol

from rails_ray.errors import ConflictError, NotFoundError
from rails_ray.storage.local import LocalFiles

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a run or a version: it becomes a folder


def timed_name(what: str) -> str:
    """A name for a run or a version of which nobody chose one."""
    return f"{what}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


class Tagged(NamedTuple):
    """A file's bytes and the tag that names this state of the file."""

    data: bytes
    tag: str


class Files(Protocol):
    """What a kind of storage can do. Its paths are checked already; it says no, and `Storage` puts that into words."""

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes | None:
        """None where there is no such file."""

    def read_tagged(self, path: str) -> tuple[bytes, str] | None:
        """Bytes and tag of one and the same state; None where there is no such file."""

    def write(self, path: str, data: bytes) -> None: ...

    def create(self, path: str, data: bytes) -> bool:
        """Whether the file is now ours: there was none."""

    def swap(self, path: str, data: bytes, tag: str) -> bool:
        """Whether the file is now ours: it was in the state `tag`."""

    def list(self, path: str) -> list[str]: ...

    def delete(self, path: str) -> None: ...

    def check_conditional(self) -> None: ...


class Storage:
    """Files by their path relative to a root: a local folder or `s3://bucket[/prefix]`.

    A reader sees the old bytes or the new ones. Whatever goes wrong with the storage itself is a `StorageError`.
    A file that is ever swapped must be changed by `create` and `swap` alone, and its bytes should hold a nonce: over a
    network an answer can be lost, and whether a write was ours is then told by its bytes.
    """

    def __init__(self, root: str) -> None:
        """Does no network.

        Raises:
        ValueError: if `root` is a URL of another kind, carries credentials, or names something that is no folder.
        """
        self._files: Files
        scheme, separator, rest = root.partition("://")
        if not separator:
            self._files = LocalFiles(root)
        elif scheme == "s3":
            from rails_ray.storage.s3 import S3Files

            self._files = S3Files(*_bucket_and_prefix(rest))
        else:
            raise ValueError(f"storage must be a local folder or s3://bucket/prefix, got {scheme}://...")

    def __str__(self) -> str:
        return str(self._files)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return self._files.exists(_to_file(path))

    def read(self, path: str) -> bytes:
        """Raises:
        NotFoundError: if there is no such file.
        """
        data = self._files.read(_to_file(path))
        if data is None:
            raise NotFoundError(f"{self}/{path} must exist, got no such file")
        return data

    def read_tagged(self, path: str) -> Tagged | None:
        """The bytes with the tag that `swap` takes; None where there is no such file."""
        found = self._files.read_tagged(_to_file(path))
        return Tagged(*found) if found else None

    def write(self, path: str, data: bytes) -> None:
        self._files.write(_to_file(path), data)

    def create(self, path: str, data: bytes) -> None:
        """Writes where there is no file.

        Raises:
        ConflictError: if there is one.
        """
        if not self._files.create(_to_file(path), data):
            raise ConflictError(f"{self}/{path} must not exist yet, got a file that someone else wrote first")

    def swap(self, path: str, data: bytes, tag: str | None) -> None:
        """Replaces the state that `tag` names; None stands for no file.

        Raises:
        ConflictError: if the file is in another state.
        """
        if tag is None:
            self.create(path, data)
        elif not self._files.swap(_to_file(path), data, tag):
            raise ConflictError(
                f"{self}/{path} must still be as it was read, got a change that someone else wrote first: read it again"
            )

    def list(self, path: str) -> builtins.list[str]:
        """Names in a folder, sorted, those that start with a dot left out; none where there is no folder."""
        return self._files.list(_down(path))

    def delete(self, path: str) -> None:
        """No error if there is no such file."""
        self._files.delete(_to_file(path))

    def check_writable(self) -> None:
        """Writes and deletes a file, so that what is missing is told before hours of work.

        Raises:
        NotFoundError: if there is no such bucket.
        StorageError: if the storage cannot be written.
        """
        probe = f".probe-{uuid.uuid4().hex}"
        self._files.write(probe, b"")
        self._files.delete(probe)

    def check_conditional(self) -> None:
        """Raises:
        StorageError: if the server ignores the conditions of `create` and `swap`, so that two could both win.
        """
        self._files.check_conditional()


def _bucket_and_prefix(rest: str) -> tuple[str, str]:
    """Of `s3://rest`. The messages do not repeat it: it may hold a secret."""
    if "@" in rest:
        raise ValueError(
            "storage must be s3://bucket/prefix without credentials, got some: "
            "take them out and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if "?" in rest:
        raise ValueError(
            "storage must be s3://bucket/prefix without a query, got one: set AWS_ENDPOINT_URL and the like"
        )
    bucket, _, prefix = rest.partition("/")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", bucket) or ".." in prefix.split("/"):
        raise ValueError("storage must be s3://bucket/prefix, got an invalid bucket or prefix")
    return bucket, _down(prefix.lstrip("/"))


def _down(path: str) -> str:
    """The path with nothing in it but names and the slashes between them."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"a path in storage must be relative and lead down, got {path!r}")
    return "/".join(pure.parts)


def _to_file(path: str) -> str:
    if not (down := _down(path)):
        raise ValueError(f"a path in storage must name a file, got {path!r}")
    return down
