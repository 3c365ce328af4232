"""Leases: a server says which version it reads, so that no collection deletes that version.

readers/<version>/<id>.json    renewed while the server lives; one that died pins nothing for long
"""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable

from rails_ray.errors import RailsRayError
from rails_ray.storage import expiring
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.intents import intent

FOLDER = "readers"
LASTS_S, RENEWED_S = 300.0, 60.0


class Lease:
    """A server's lease. What it cannot write it logs once and tries again: a server never ends for it.

    Args:
        version: gives the name of the version that the server reads now.
        clock: seconds since 1970.
    """

    def __init__(self, storage: Storage, version: Callable[[], str], clock: Callable[[], float] = time.time) -> None:
        self._storage, self._version, self._clock = storage, version, clock
        self._file = f"{uuid.uuid4().hex}.json"
        self._held: str | None = None
        self._tried: str | None = None
        self._due, self._is_failing = 0.0, False

    def look(self) -> None:
        """Take, renew or change the lease if it is time for that. Call it every few seconds."""
        version, now = self._version(), self._clock()
        if now < self._due and version == self._tried:
            return
        self._due, self._tried = now + RENEWED_S, version
        try:
            if version == self._held:
                self._write(version)
            else:
                with intent(self._storage, f"lease of {version}"):
                    self._write(version)
                self.end()
                self._held = version
        except RailsRayError as error:
            if not self._is_failing:
                logging.getLogger(__name__).warning(
                    "version %s is served without a lease, so that a collection may delete it: %s", version, error
                )
            self._is_failing = True
        else:
            self._is_failing = False

    def end(self) -> None:
        """Give the lease back."""
        held, self._held = self._held, None
        if held is not None:
            try:
                self._storage.delete(f"{FOLDER}/{held}/{self._file}")
            except RailsRayError:
                return  # it expires

    def _write(self, version: str) -> None:
        self._storage.write(
            f"{FOLDER}/{version}/{self._file}", expiring.to_json(f"serving {version}", self._clock() + LASTS_S)
        )


def readers(storage: Storage, now: float) -> tuple[Counter[str], list[str]]:
    """How many servers read each version, and the files of leases that have expired.

    Args:
        now: seconds since 1970.
    """
    found, expired = Counter[str](), list[str]()
    for lease in expiring.listed(storage, FOLDER):
        if lease.is_live(now):
            found[lease.path.split("/")[1]] += 1
        else:
            expired.append(lease.path)
    return found, expired
