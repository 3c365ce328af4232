"""API keys: a file of them, who gets in by it now, and what outlives a router.

| file                     | who gets in                                                                     |
|--------------------------|---------------------------------------------------------------------------------|
| with keys                | holders of its keys                                                             |
| missing, or without keys | nobody                                                                          |
| malformed, or unreadable | holders of the last good keys, also through a router that has just started       |

The last good keys are kept as their SHA-256 in a folder of this machine that only its owner can read or write.
"""

import hashlib
import hmac
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SHORTEST_KEY = 16  # characters; of random hexadecimal digits, 64 bits


class NoKeysError(ValueError):
    """A file of keys is missing, or has no key: what its owner does to lock everyone out."""


@dataclass(frozen=True)
class Keys:
    """API keys as SHA-256, compared in constant time."""

    digests: tuple[bytes, ...]

    @staticmethod
    def of(keys: Iterable[str]) -> "Keys":
        return Keys(tuple(hashlib.sha256(key.encode()).digest() for key in keys))

    @staticmethod
    def read(path: str) -> "Keys":
        """The keys of a file, one a line; lines that are empty or begin with # are passed over.

        Raises:
            NoKeysError: if there is no such file, or no key in it.
            ValueError: if it cannot be read, or holds a key that is too short to be secret.
        """
        try:
            lines = Path(path).read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeError) as error:
            kind = NoKeysError if isinstance(error, FileNotFoundError) else ValueError
            raise kind(f"keys_file must be a text file of ASCII keys, got {path}: {error}") from None
        keys = []
        for number, line in enumerate(lines, start=1):
            key = line.strip()
            if not key or key.startswith("#"):
                continue
            if len(key) < SHORTEST_KEY:
                raise ValueError(
                    f"line {number} of {path} must be a key of at least {SHORTEST_KEY} characters, got {len(key)}"
                )
            keys.append(key)
        if not keys:
            raise NoKeysError(f"keys_file must hold at least 1 key, got none in {path}")
        return Keys.of(keys)

    def hold(self, key: bytes) -> bool:
        """Whether this is one of the keys. Every key is compared, so the time tells nothing."""
        digest = hashlib.sha256(key).digest()
        return sum([hmac.compare_digest(known, digest) for known in self.digests]) > 0


NOBODY = Keys(())


class Valid(NamedTuple):
    """
    keys: that are valid now.
    problem: what is wrong with their file and what follows, in a sentence; None if nothing is.
    """

    keys: Keys
    problem: str | None = None


def valid(path: str, former: Keys) -> Valid:
    """The keys that are valid now by the table above.

    Args:
        former: those that were valid before.
    """
    try:
        return Valid(Keys.read(path))
    except NoKeysError as error:
        return Valid(NOBODY, f"{error}: nobody gets in until it holds one")
    except ValueError as error:
        follows = "the keys that were valid before stay so" if former.digests else "nobody gets in"
        return Valid(former, f"{error}: {follows} until it is mended")


class LastKeys:
    """The keys that were valid last, by whoever looked on this machine.

    Args:
        path: of the file of keys; each has a memory of its own.
        folder: that only its owner may open.
    """

    def __init__(self, path: str, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.gettempdir()) / f"rails-ray-{os.geteuid()}"
        self._file = self.folder / f"keys-{hashlib.sha256(str(Path(path).absolute()).encode()).hexdigest()[:16]}"

    def read(self) -> Keys | None:
        """None if they are unknown, or if another user could have written the file."""
        with suppress(OSError, UnicodeError):
            if self._is_ours():
                digests = self._file.read_text(encoding="ascii").split()
                if all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests):
                    return Keys(tuple(map(bytes.fromhex, digests)))
        return None

    def keep(self, keys: Keys) -> bool:
        """Whether they could be kept. A file that is kept already is marked as used, so that no cleaner takes it."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            if not self._is_ours():
                return False
            if self.read() == keys:
                os.utime(self._file)
                return True
            handle, made = tempfile.mkstemp(dir=self.folder)  # readable by its owner alone
            try:
                with os.fdopen(handle, "w", encoding="ascii") as file:
                    file.writelines(f"{digest.hex()}\n" for digest in keys.digests)
                Path(made).replace(self._file)
            except OSError:
                Path(made).unlink()
                raise
            return True
        except OSError:
            return False

    def _is_ours(self) -> bool:
        found = os.lstat(self.folder)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


class KeysFile:
    """A file of keys that is looked at again and again, by several processes that must agree."""

    def __init__(self, path: str, last: LastKeys | None = None) -> None:
        self._path = path
        self._last = last or LastKeys(path)
        self._keys = NOBODY  # where nothing can be kept

    def look(self) -> Valid:
        """What is valid now."""
        remembered = self._last.read()
        keys, problem = valid(self._path, self._keys if remembered is None else remembered)
        self._keys = keys
        if not self._last.keep(keys) and problem is None:
            problem = (
                f"{self._last.folder} must be a folder that only this user can open, got another or none: a router "
                "that starts while the file of keys is malformed will let nobody in"
            )
        return Valid(keys, problem)
