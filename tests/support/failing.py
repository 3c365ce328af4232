"""A storage of which one operation fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rails_ray.errors import StorageError
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.local import LocalFiles

OPERATIONS = {
    *("exists", "read", "read_tagged", "read_hashed", "open", "sizes", "list"),
    *("write", "create", "swap", "copy", "delete"),
}

BEFORE_AND_AFTER = [pytest.param(False, id="before", marks=pytest.mark.long), pytest.param(True, id="after")]
"""Values of `is_done`: an operation fails before or after it takes effect."""


class Failing(Storage):
    """A storage of which one operation fails: before it is done, or after.

    Args:
        number: of the operation, from 1 on.
        is_dead: whether all later operations fail too, by an error that nobody handles, as if the process was killed.
        before: called before the operation, in place of a failure.
    """

    def __init__(
        self,
        storage: Storage,
        number: int,
        *,
        is_done: bool = False,
        is_dead: bool = False,
        before: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(str(storage))
        self.number, self.is_done, self.is_dead, self.before = number, is_done, is_dead, before
        self.count = 0
        self.files: Any = _Counted(self.files, self)

    def called(self, own: Callable[..., Any], *arguments: Any) -> Any:
        """Do an operation, or fail."""
        self.count += 1
        if self.count < self.number or (self.count > self.number and not self.is_dead):
            return own(*arguments)
        if self.before is not None:
            self.before()
            return own(*arguments)
        if self.is_done and self.count == self.number:
            found = own(*arguments)
            if own.__name__ == "open" and found:
                found[0].close()
        raise OSError("the process is dead") if self.is_dead else StorageError("storage must answer, got nothing")


class _Counted:
    def __init__(self, files: Any, of: Failing) -> None:
        self._files, self._of = files, of

    def __str__(self) -> str:
        return str(self._files)

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._files, name)
        return (lambda *arguments: self._of.called(own, *arguments)) if name in OPERATIONS else own


def dying(patched: pytest.MonkeyPatch, root: Path, number: int, is_done: bool) -> list[int]:
    """Let the process die at an operation on files below a folder, before it is done or after: every later one fails
    too. It may open as many storages as it likes.

    Args:
        number: of the operation, from 1 on.

    Returns:
        A list of one number, that of the operations.
    """
    count = [0]
    for name in OPERATIONS:
        own = getattr(LocalFiles, name)

        def counted(self: LocalFiles, *arguments: Any, own: Callable[..., Any] = own) -> Any:
            if not Path(str(self)).is_relative_to(root):
                return own(self, *arguments)
            count[0] += 1
            if count[0] < number:
                return own(self, *arguments)
            if is_done and count[0] == number:
                found = own(self, *arguments)
                if own.__name__ == "open" and found:
                    found[0].close()
            raise OSError("the process is dead")

        patched.setattr(LocalFiles, name, counted)
    return count
