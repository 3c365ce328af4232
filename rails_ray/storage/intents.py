"""Intents: a change of a storage announces itself, so that no collection deletes what it needs.

A change needs files that no manifest names yet: objects that it writes, or that others wrote before it, and the version
that it begins from. So changes and collections exclude each other:

    change                                          collection
    1. reads the pointer                            1. takes the lock
    2. writes an intent                             2. looks for intents, and ends if one is live
    3. looks for the lock; while one is live,       3. if an intent has expired, writes the pointer anew
       it waits, and then begins again              4. reads what versions need, and deletes all else
    4. works                                        5. releases the lock
    5. replaces the pointer if it is as it was at 1
    6. deletes the intent

Either the intent is written before the collection looks for intents, and it is seen; or the lock is taken before the
change looks for it, and that is seen. A change that stood still until its intent expired cannot take effect: its step 5
fails by step 3 of the collection. A collection that stands still deletes nothing once its lock is about to expire.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rails_ray.errors import ConflictError, DamagedError, RailsRayError
from rails_ray.storage import expiring
from rails_ray.storage.filesystem import Storage, Tagged

FOLDER, LOCK = "intents", "collecting.json"
LASTS_S, RENEWED_S = 120.0, 30.0
LOOK_S = 0.2  # between two looks at a collection that is waited for


@contextmanager
def intent(
    storage: Storage,
    what: str,
    pointer: str | None = None,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Tagged | None]:
    """Inside the block no collection deletes a file. Waits for one that is under way, which gives way within seconds.

    Yields the state of the pointer from before, which the change must find when it replaces it.

    Args:
        what: the change, for messages.
        pointer: the file that the change ends by replacing; None if it replaces none.
        clock: seconds since 1970.

    Raises:
        ConflictError: in place of a DamagedError, if the pointer was replaced: what the change needs may be gone.
        StorageError: if the storage cannot be written to.
    """
    while True:
        before = None if pointer is None else storage.read_tagged(pointer)
        with _held(storage, what, clock):
            if _has_waited(storage, clock, sleep):
                continue
            try:
                yield before
            except DamagedError as error:
                if pointer is not None and storage.read_tagged(pointer) != before:
                    raise ConflictError(f"{pointer} must stay as it was during {what}, got a change: {error}") from None
                raise
            return


@contextmanager
def _held(storage: Storage, what: str, clock: Callable[[], float]) -> Iterator[None]:
    """An intent, renewed by a thread and deleted at the end."""
    path, is_over = f"{FOLDER}/{uuid.uuid4().hex}.json", threading.Event()
    storage.create(path, expiring.to_json(what, clock() + LASTS_S))

    def renew() -> None:
        while not is_over.wait(RENEWED_S):
            with suppress(RailsRayError):  # tried again
                storage.write(path, expiring.to_json(what, clock() + LASTS_S))

    thread = threading.Thread(target=renew, name="intent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        with suppress(RailsRayError):  # it expires
            storage.delete(path)


def _has_waited(storage: Storage, clock: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Wait until no collection is under way. Returns whether one was."""
    has_waited = False
    while (lock := expiring.read(storage, LOCK)) is not None and lock.is_live(clock()):
        if not has_waited:
            logging.getLogger(__name__).info("waiting for %s", lock)
        has_waited = True
        sleep(LOOK_S)
    return has_waited
