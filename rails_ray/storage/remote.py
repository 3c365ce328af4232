"""Parts of storage on a server, of any protocol: ranges of an object, and whether its conditions hold."""

import hashlib
import io
import os
import uuid
from collections.abc import Callable, Iterable
from typing import Any
from urllib.request import getproxies_environment

import numpy as np
from numpy.typing import NDArray

from rails_ray.errors import StorageError
from rails_ray.storage.memory import aligned

THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def hashed(data: bytes, place: int) -> tuple[NDArray[np.uint8], str]:
    """The bytes, of which that at `place` is aligned, and their sha256."""
    array = aligned(len(data), place)
    array[:] = np.frombuffer(data, np.uint8)
    return array, hashlib.sha256(data).hexdigest()


class ConditionRefusedError(StorageError):
    """The server answered a conditional write by an error that it might not give to a plain one."""


def check_conditional(files: Any, headers: str) -> None:
    """Write and delete a probe file, twice: a bucket that keeps versions then has some of it.

    Args:
        files: a member of `filesystem.Files`.
        headers: that carry the conditions.

    Raises:
        StorageError: if the storage cannot be written to, or the server ignores or refuses the conditions of `create`
            and `swap`, so that two writers could both win.
    """
    probe = f".probe-{uuid.uuid4().hex}"
    try:
        created = files.create(probe, b"1")
        _, tag = files.read_tagged(probe) or (b"", "")
        written = [created, files.create(probe, b"2"), files.swap(probe, b"3", tag), files.swap(probe, b"4", tag)]
        files.delete(probe)
        written += [files.create(probe, b"5"), files.create(probe, b"6")]
    except ConditionRefusedError:
        files.write(probe, b"7")  # raises if it is not the condition that the server refuses
        written = []
    finally:
        files.delete(probe)
    if written != [True, False, True, False, True, False]:
        raise StorageError(
            f"storage {files} must honour conditional writes ({headers}), got a server that ignores or refuses them: "
            "update it, or use a bucket on a server that honours them"
        )


def below(paths: Iterable[str], folder: str) -> list[str]:
    """Sorted paths of files in a folder, without hidden ones and the markers of empty folders."""
    names = ((path, path.removeprefix(folder).strip("/").split("/")) for path in paths if not path.endswith("/"))
    return sorted(path for path, parts in names if not any(part.startswith(".") for part in parts))


def keep_direct() -> None:
    """Add this machine, to which no proxy leads, to NO_PROXY, if the environment names a proxy."""
    if not getproxies_environment().keys() - {"no"}:
        return
    given = [os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    hosts = [host.strip() for host in ",".join(given).split(",") if host.strip()]
    if "*" not in hosts:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys((*hosts, *THIS_MACHINE)))


class Ranges(io.RawIOBase):
    """An object as a file that is read by ranges.

    Args:
        read_range: gives the bytes first .. end - 1.
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range = read_range
        self._size = size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def readinto(self, buffer: Any) -> int:
        first, end = self._place, min(self._place + len(buffer), self._size)
        if first >= end:
            return 0
        data = self._read_range(first, end)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)
