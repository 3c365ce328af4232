"""Files that count until a time that they name, and are renewed while their writer lives: one that died pins nothing.

    intents/<id>.json               a change that is under way (`intents`)
    readers/<version>/<id>.json     a server that reads a version (`leases`)
    collecting.json                 the collection that is under way (`collecting`)

Clocks of machines that share a storage may differ by a minute.
"""

import getpass
import json
import platform
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from rails_ray.errors import DamagedError
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import json_object


@dataclass(frozen=True)
class Expiring:
    """
    path, tag: the file, and its state.
    what, by: what it stands for; user and machine, if known.
    expires_at: seconds since 1970.
    """

    path: str
    tag: str
    what: str
    by: str | None
    expires_at: float

    def is_live(self, now: float) -> bool:
        """Return whether it still counts, at a time in seconds since 1970."""
        return now < self.expires_at

    def __str__(self) -> str:
        by = "" if self.by is None else f" by {self.by}"
        return f"{self.what}{by} until {datetime.fromtimestamp(self.expires_at, UTC):%H:%M:%S} UTC"


def to_json(what: str, expires_at: float) -> bytes:
    """The bytes of such a file, different each time."""
    until = datetime.fromtimestamp(expires_at, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"what": what, "by": this_user(), "expires_at": until, "nonce": uuid.uuid4().hex}).encode()


def read(storage: Storage, path: str) -> Expiring | None:
    """Such a file; None if there is none.

    Raises:
        DamagedError: if it cannot be read.
    """
    found = storage.read_tagged(path)
    if found is None:
        return None
    value = json_object(found.data, f"{storage}/{path}")
    try:
        expires_at = datetime.fromisoformat(value["expires_at"]).timestamp()
        return Expiring(path, found.tag, str(value["what"]), value.get("by"), expires_at)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{storage}/{path} must say until when it counts, got: {error}: delete it if nobody writes"
        ) from None


def listed(storage: Storage, folder: str) -> list[Expiring]:
    """All such files in a folder and below it."""
    found = (read(storage, path) for path in storage.walk(folder))
    return [own for own in found if own is not None]


def this_user() -> str | None:
    """User and machine, as far as the machine says."""
    with suppress(OSError, KeyError, ImportError):  # a user without an entry, or a system without users
        return f"{getpass.getuser()}@{platform.node()}"
    return None
