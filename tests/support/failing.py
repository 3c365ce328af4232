"""A storage of which one operation fails."""

from collections.abc import Callable
from typing import Any

from rails_ray.storage.filesystem import Storage

OPERATIONS = frozenset(
    ("write", "create", "swap", "copy", "delete", "read", "read_hashed", "read_tagged", "exists", "sizes", "list")
)


class Failing(Storage):
    """A storage of which one operation fails: before it is done, or after.

    Args:
        number: of the operation, from 1 on.
        is_dead: whether all later operations fail too, as of a process that was killed.
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
        if self.is_dead and self.count > self.number:
            raise OSError("the process is dead")
        if self.count == self.number and self.before is not None:
            self.before()
            return own(*arguments)
        if self.count == self.number and not self.is_done:
            raise OSError("the network is gone")
        found = own(*arguments)
        if self.count == self.number:
            raise OSError("the answer is lost")
        return found


class _Counted:
    def __init__(self, files: Any, of: Failing) -> None:
        self._files, self._of = files, of

    def __str__(self) -> str:
        return str(self._files)

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._files, name)
        return (lambda *arguments: self._of.called(own, *arguments)) if name in OPERATIONS else own
