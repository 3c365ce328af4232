"""Files in a folder: each is written to a hidden file, then renamed or linked into place."""

import errno
import fcntl
import hashlib
import io
import os
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rails_ray.errors import StorageError
from rails_ray.paths import expanded
from rails_ray.storage.memory import aligned

HASHED_BYTES = 2**22  # read while as many are hashed
REMEDIES = {
    errno.ENOSPC: "free some space and run it again",
    errno.EDQUOT: "free some space or raise the quota, and run it again",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f) and run it again",
    errno.EACCES: "check the folder's owner and permissions",
    errno.EPERM: "check the folder's owner and what its file system supports",
    errno.EROFS: "mount it for writing or name another folder",
    errno.ENOTDIR: "move away the file that stands where a folder must be",
}


class LocalFiles:
    """Files under a folder. The first write makes the folder."""

    def __init__(self, root: str) -> None:
        self._root = expanded(root).resolve()
        with self._own_errors("be the folder", ""):
            if self._root.exists() and not self._root.is_dir():
                raise ValueError(f"storage must be a folder, got the file {self._root}")

    def __str__(self) -> str:
        return str(self._root)

    def exists(self, path: str) -> bool:
        with self._own_errors("find the file", path):
            return (self._root / path).is_file()

    def read(self, path: str) -> bytes | None:
        with self._own_errors("give the file", path):
            try:
                return (self._root / path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_tagged(self, path: str) -> tuple[bytes, str] | None:
        data = self.read(path)
        return None if data is None else (data, hashlib.sha256(data).hexdigest())

    def open(self, path: str) -> tuple[io.RawIOBase, str] | None:
        with self._own_errors("give the file", path):
            try:
                file = (self._root / path).open("rb", buffering=0)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
            state = os.fstat(file.fileno())
            return file, f"{state.st_size}-{state.st_mtime_ns}"

    def read_hashed(self, path: str, place: int) -> tuple[NDArray[np.uint8], str] | None:
        found = self.open(path)
        if found is None:
            return None
        with self._own_errors("give the file", path), found[0] as file, ThreadPoolExecutor(1) as pool:
            array, digest = aligned(os.fstat(file.fileno()).st_size, place), hashlib.sha256()
            memory, num_read = array.data, 0
            while num_read < len(memory) and (num := file.readinto(memory[num_read : num_read + HASHED_BYTES])):
                pool.submit(digest.update, memory[num_read : num_read + num])
                num_read += num
        return array[:num_read], digest.hexdigest()

    def write(self, path: str, data: bytes) -> None:
        with self._own_errors("take the file", path), self._part(path, data) as part:
            part.replace(self._root / path)

    def copy(self, source: str, target: str) -> int | None:
        origin = self._root / source
        with self._own_errors("copy the file", source), self._hidden(target) as part:
            try:
                part.hardlink_to(origin)  # safe to share: files are replaced, never changed
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError:  # a file system without links
                shutil.copyfile(origin, part)
                with part.open("rb+") as file:
                    os.fsync(file.fileno())
            size = part.stat().st_size
            part.replace(self._root / target)
            return size

    def create(self, path: str, data: bytes) -> bool:
        with self._own_errors("take the file", path), self._part(path, data) as part:
            try:
                (self._root / path).hardlink_to(part)  # unlike a rename, it never replaces
            except FileExistsError:
                return False
            return True

    def swap(self, path: str, data: bytes, tag: str) -> bool:
        target = self._root / path
        # A separate lock file: the rename replaces the target, and a lock on it would be lost.
        lock = target.with_name(f".{target.name}.lock")
        with self._own_errors("take the file", path), self._part(path, data) as part, lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            found = self.read_tagged(path)
            if found is None or found[1] != tag:
                return False
            part.replace(target)
            return True

    def sizes(self, path: str) -> dict[str, int]:
        folder = self._root / path
        if not folder.is_dir():
            return {}
        with self._own_errors("list the folder", path):
            return dict(self._below(folder, set()))

    def list(self, path: str) -> list[str]:
        with self._own_errors("list the folder", path):
            try:
                names = [entry.name for entry in (self._root / path).iterdir()]
            except (FileNotFoundError, NotADirectoryError):
                return []
            return sorted(name for name in names if not name.startswith("."))

    def _below(self, folder: Path, seen: set[Path]) -> Iterator[tuple[str, int]]:
        """The files of a folder and of those below it, with their bytes; each folder once, as a link may lead back."""
        seen.add(folder.resolve())
        for entry in folder.iterdir():
            if entry.name.startswith("."):
                continue
            if entry.is_file():
                with suppress(FileNotFoundError):  # deleted in the meantime
                    yield entry.relative_to(self._root).as_posix(), entry.stat().st_size
            elif entry.is_dir() and entry.resolve() not in seen:
                yield from self._below(entry, seen)

    def delete(self, path: str) -> None:
        with self._own_errors("delete the file", path):
            try:
                (self._root / path).unlink()
            except (FileNotFoundError, NotADirectoryError):
                return

    def check_conditional(self) -> None:
        """Write a probe file by a link, and delete it."""
        probe = f".probe-{uuid.uuid4().hex}"
        self.create(probe, b"")
        self.delete(probe)

    @contextmanager
    def _part(self, path: str, data: bytes) -> Iterator[Path]:
        """A hidden file with the bytes, flushed to disk, in the folder of `path`."""
        with self._hidden(path) as part:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield part

    @contextmanager
    def _hidden(self, path: str) -> Iterator[Path]:
        """The path of a hidden file, still to be made, in the folder of `path`."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)

    @contextmanager
    def _own_errors(self, deed: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            remedy = REMEDIES.get(error.errno or 0, "fix that and run it again")
            what = error.strerror or type(error).__name__
            raise StorageError(f"storage must {deed} {self._root / path}, got: {what}: {remedy}") from None
