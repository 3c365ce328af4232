"""One object for all reading and writing: bytes under a root, each file written whole or not at all."""

import os
import re
import uuid
from pathlib import Path, PurePosixPath

from rails_ray.errors import NotFoundError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a run or a version: it becomes a folder


class Storage:
    """Files by their path relative to a root folder.

    A write goes to a file of its own and is renamed into place, so that a reader sees the old bytes or the new ones.
    """

    def __init__(self, root: str) -> None:
        """Raises:
        ValueError: if `root` is a URL or names something that is no folder.
        """
        if "://" in root:
            raise ValueError(f"storage must be a local folder, got {root}")
        self._root = Path(root).expanduser().resolve()
        if self._root.exists() and not self._root.is_dir():
            raise ValueError(f"storage must be a folder, got the file {self._root}")

    def __str__(self) -> str:
        return str(self._root)

    def _at(self, path: str) -> Path:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError(f"a path in storage must be relative and lead down, got {path!r}")
        return self._root / path

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def read(self, path: str) -> bytes:
        """Raises:
        NotFoundError: if there is no such file.
        """
        try:
            return self._at(path).read_bytes()
        except FileNotFoundError:
            raise NotFoundError(f"{self._root}/{path} must exist, got no such file") from None

    def write(self, path: str, data: bytes) -> None:
        target = self._at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted; none where there is no folder."""
        folder = self._at(path)
        return sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".") if folder.is_dir() else []
