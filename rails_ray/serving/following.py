"""A server that follows its storage: when another version becomes current, that one is loaded beside the one that
answers, and then takes over. So does a new calibration or default search of the version that answers.

    look -> the pointer has changed -> load what is missing, check -> switch     the former ends with its last request
                                    -> refuse     the former goes on; tried again after RETRY_S, or another change

Reading checks every byte against the manifest. Nothing is switched to that has not answered an example query.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from math import inf
from typing import Protocol

from rails_ray.errors import RailsRayError, StorageError
from rails_ray.families.version import Version
from rails_ray.serving.heap import trim
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.versions import CURRENT, current_version

EVERY_S = 5.0  # between two looks, if nobody says otherwise
RETRY_S = 60.0  # before a version that was refused is tried again

log = logging.getLogger(__name__)


class Follows(Protocol):
    """A server that can go on with another version."""

    @property
    def served(self) -> Version:
        """The version that answers."""

    def prepare(self, version: Version) -> Callable[[], None]:
        """Load a version beside the one that answers, and let it answer an example query. What is returned switches to
        it; every answer is of one of the two.

        Raises:
            RailsRayError, ValueError: if it cannot be served.
        """

    def note_refused(self, is_refused: bool) -> None:
        """Take note of whether the current version is refused."""


class Follower:
    """Keeps a server at the current version of a storage.

    Args:
        every_s: seconds between two looks at the pointer to the current version.
    """

    def __init__(
        self,
        server: Follows,
        storage: Storage,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._storage, self.every_s, self._clock = server, storage, every_s, clock
        self._tag: str | None = None  # of the pointer that was followed, or refused, last
        self._retry_at = -inf
        self._reason: str | None = None  # why that one was refused
        self._former = list[weakref.ref[Version]]()
        self._wake, self._is_stopped = threading.Event(), False
        self._thread: threading.Thread | None = None
        self.refused: str | None = None

    def look(self) -> bool:
        """Go on with the current version if it is another one, or is calibrated or tuned anew; or take note of why not
        in `refused`, a sentence.

        Returns:
            Whether the server has switched.
        """
        self._give_back()
        former, name, tag = self._server.served, None, None
        try:
            found = self._storage.read_tagged(CURRENT)
            tag = None if found is None else found.tag
            if tag == self._tag and self._clock() < self._retry_at:
                self._refuse(self._reason)
                return False
            name = current_version(self._storage)
            has_switched = self._follow(former, name)
            self._tag, self._retry_at, self._reason = tag, inf, None
            self._refuse(None)
            return has_switched
        except Exception as error:  # whatever it is, the former version goes on
            if not isinstance(error, RailsRayError | ValueError | OSError | MemoryError):
                log.exception("the current version cannot be loaded")
            reason = f"{former.name} goes on: {error or type(error).__name__}"
            if name is None or isinstance(error, StorageError):  # which the next look may find whole
                self._refuse(f"the current version cannot be read, and {reason}")
            else:
                self._tag, self._retry_at = tag, self._clock() + RETRY_S
                self._reason = f"version {name} is refused, and {reason}"
                self._refuse(self._reason)
            return False

    def _follow(self, former: Version, name: str) -> bool:
        version = Version.published(self._storage, name, former.allowed)
        is_other = version.manifest.sha256 != former.manifest.sha256
        if not is_other and version.tuned == former.tuned:
            return False
        check_takes_over(former, version)
        self._server.prepare(version.after(former))()
        self._former.append(weakref.ref(former))
        what = f"in place of {former.name}" if is_other else "with its new calibration or default search"
        log.warning("version %s answers %s", name, what)
        return True

    def _refuse(self, sentence: str | None) -> None:
        """Take note of why the current version is refused; None if it is not. What is new is logged."""
        if sentence is not None and sentence != self.refused:
            log.error(sentence)
        self.refused = sentence
        self._server.note_refused(sentence is not None)

    def _give_back(self) -> None:
        """Give the memory of former versions back once their last requests are answered."""
        left = [former for former in self._former if former() is not None]
        if len(left) < len(self._former):
            self._former = left
            trim()

    def look_soon(self) -> None:
        """Look in the background now rather than later."""
        self._wake.set()

    def start(self) -> None:
        """Look every `every_s` seconds, in a thread. Later calls do nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._go_on, name="follow", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more. A version that is being loaded is not waited for."""
        self._is_stopped = True
        self._wake.set()

    def _go_on(self) -> None:
        while not self._is_stopped:
            self._wake.wait(self.every_s)
            self._wake.clear()
            if not self._is_stopped:
                self.look()


def check_takes_over(former: Version, version: Version) -> None:
    """Check that a server of one version can go on with another.

    Raises:
        ValueError: if clients would have to ask otherwise, or another heavy ranker is needed.
    """
    own, given = former.manifest.query, version.manifest.query
    if any(given.get(name) != kind for name, kind in own.items()):
        raise ValueError(
            f"version {version.name} must take the queries that {former.name} takes, {_words(own)}, got "
            f"{_words(given)}: start a server of it"
        )
    if version.family.ranker != former.family.ranker:
        raise ValueError(
            f"version {version.name} must have the heavy ranker of {former.name}, {former.family.ranker.path or 'none'}"
            f", got {version.family.ranker.path or 'none'} or another folder: start a server of it"
        )


def _words(query: dict[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in query.items())
