"""Collection: delete the files that nothing needs, one collection of a storage at a time.

    collecting.json    the lock: who collects, until when

`intents` says how changes and collections exclude each other. A collection gives way: once a change has waited for
GIVES_WAY_S, it ends, and what is left goes another time. It may end anywhere: a folder loses the records that make it a
version before its other files, and objects go last.

A server that does not answer may still carry out a deletion later. So the lock then stays until it expires, and a file
counts as deleted only if it cannot be found any more. Deletions carry no condition: an object that is written again has
the same bytes, so that its state would not tell; the lock does.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rails_ray.errors import ConflictError, RailsRayError, StorageError
from rails_ray.storage import expiring, garbage, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.garbage import Garbage, RetentionPolicy
from rails_ray.storage.intents import FOLDER, LOCK

LASTS_S = 120.0  # of the lock, renewed at each look
LEAST_S = 100.0  # that it has left where a file is deleted: more than storage takes to give up
LOOK_S = 1.0  # between two looks at changes that wait
GIVES_WAY_S = 5.0


@dataclass(frozen=True)
class Collected:
    """
    num_files, size_bytes: what was deleted.
    is_complete: whether nothing is left to delete.
    """

    garbage: Garbage
    num_files: int
    size_bytes: int
    is_complete: bool


def collect(
    storage: Storage,
    policy: RetentionPolicy,
    *,
    may_be_most: bool = False,
    clock: Callable[[], float] = time.time,
    on_file: Callable[[int, int], None] = lambda done, total: None,
) -> Collected:
    """Delete the versions that a policy gives up, and all files that nothing needs.

    Args:
        may_be_most: whether more than half of all bytes may go.
        clock: seconds since 1970.
        on_file: called with (files deleted, all files).

    Raises:
        ConflictError: if a change or another collection is under way.
        StorageError: if the storage does not answer, or cannot be written to.
        NotFoundError, DamagedError, ValueError: as `garbage.find`, and if more than half of all bytes would go.
    """
    storage.check_conditional()
    with _locked(storage, clock) as lock:
        changes = expiring.listed(storage, FOLDER)
        for change in changes:
            if change.is_live(clock()):
                raise ConflictError(f"no change may be under way in {storage}, got {change}: run it again later")
        if changes:
            versions.renew_pointer(storage)
            for change in changes:
                storage.delete(change.path)
        found = garbage.find(storage, policy, clock(), lock.look)
        if found.is_most and not may_be_most:
            raise ValueError(
                f"at most half of all bytes may be deleted unless --yes is given, got {found.size_bytes:,} of "
                f"{found.total_bytes:,}: look at what goes, then give it"
            )
        num_files, size_bytes = 0, 0
        for path in _in_time(lock, found.files):
            lock.delete(path)
            num_files, size_bytes = num_files + 1, size_bytes + found.files[path]
            on_file(num_files, len(found.files))
    return Collected(found, num_files, size_bytes, num_files == len(found.files))


class _Lock:
    """The lock of a storage, held."""

    def __init__(self, storage: Storage, clock: Callable[[], float]) -> None:
        self.storage, self.clock = storage, clock
        self.data, self.looked_at, self.expires_at = b"", 0.0, math.inf
        self.is_left = False  # to expire, as an answer is missing

    def look(self) -> bool:
        """Renew the lock if it is time for that. Returns whether it was."""
        if self.clock() - self.looked_at < LOOK_S:
            return False
        self.take()
        return True

    def take(self) -> None:
        """Take the lock, or renew it.

        Raises:
            ConflictError: if another collection has it.
            StorageError: if it had expired, so that a change may have begun.
        """
        former = self.expires_at
        found = self.storage.read_tagged(LOCK)
        if found is not None and found.data != self.data:
            other = expiring.read(self.storage, LOCK)
            if self.data or (other is not None and other.is_live(self.clock())):
                raise ConflictError(
                    f"one collection at a time may be under way in {self.storage}, got {other}: run it again later"
                )
        now = self.clock()
        data = expiring.to_json("collection", now + LASTS_S)
        try:
            self.storage.swap(LOCK, data, None if found is None else found.tag)
        except ConflictError:
            raise ConflictError(
                f"one collection at a time may be under way in {self.storage}, got another that began at the same time"
            ) from None
        self.data, self.looked_at, self.expires_at = data, now, now + LASTS_S
        if self.clock() >= former:
            raise StorageError(f"a collection of {self.storage} must not stand still, got a pause: run it again")

    def release(self) -> None:
        """Let others begin, unless an answer is missing."""
        if not self.is_left:
            with suppress(RailsRayError):  # it expires, or another collection has it
                found = self.storage.read_tagged(LOCK)
                if found is not None and found.data == self.data:
                    self.storage.swap(LOCK, expiring.to_json("collection", 0.0), found.tag)

    def delete(self, path: str) -> None:
        """Delete a file.

        Raises:
            StorageError: if nobody knows whether it is deleted, or the lock is about to expire.
        """
        if self.expires_at - self.clock() < LEAST_S:
            raise StorageError(f"a collection of {self.storage} must not stand still, got a pause: run it again")
        try:
            self.storage.delete(path)
        except RailsRayError as error:
            self.is_left = True
            if self.storage.exists(path):
                raise StorageError(f"{error}; the rest is left: run it again in {LASTS_S:.0f} s") from None


@contextmanager
def _locked(storage: Storage, clock: Callable[[], float]) -> Iterator[_Lock]:
    lock = _Lock(storage, clock)
    lock.take()
    try:
        yield lock
    finally:
        lock.release()


def _in_time(lock: _Lock, files: Mapping[str, int]) -> Iterator[str]:
    """The files, until a change has waited for too long."""
    waits_since = math.inf
    for path in files:
        if lock.look():
            waits_since = min(waits_since, lock.looked_at) if lock.storage.list(FOLDER) else math.inf
            if lock.looked_at - waits_since >= GIVES_WAY_S:
                return
        yield path
