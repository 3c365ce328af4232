"""API keys: a file of them, who gets in by it now, and what outlives a router.

| file                     | who gets in                                                                     |
|--------------------------|---------------------------------------------------------------------------------|
| with keys                | holders of its keys                                                             |
| missing, or without keys | nobody                                                                          |
| malformed, or unreadable | holders of the last good keys, also through a router that has started meanwhile |

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
    """API keys as their SHA-256, compared in a time that tells nothing of them."""

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
        """Whether this is one of the keys; each is compared, wherever it differs and whether one is found or not."""
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


class KeysFile:
    """A file of keys that is looked at again and again."""

    def __init__(self, path: str, memory: "Memory | None" = None) -> None:
        self._path = path
        self._memory = memory or Memory(path)
        self._keys: Keys | None = None

    def look(self) -> Valid:
        """What is valid now."""
        found = valid(self._path, self._memory.keys() if self._keys is None else self._keys)
        if found.keys != self._keys:
            self._memory.keep(found.keys)
            self._keys = found.keys
        return found


class Memory:
    """The keys that were valid last, on this machine.

    Args:
        path: of the file of keys; each has a memory of its own.
        folder: that only its owner may open.
    """

    def __init__(self, path: str, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"rails-ray-{os.geteuid()}"
        self._file = self._folder / f"keys-{hashlib.sha256(str(Path(path).absolute()).encode()).hexdigest()[:16]}"

    def keys(self) -> Keys:
        """Those that were valid last; none where that is not known, or others than the owner could have written it."""
        with suppress(OSError, UnicodeError):
            if self._is_ours():
                digests = self._file.read_text(encoding="ascii").split()
                if all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests):
                    return Keys(tuple(map(bytes.fromhex, digests)))
        return NOBODY

    def keep(self, keys: Keys) -> None:
        """Where the folder cannot be written, nothing is kept: a router that starts while the file is malformed then
        lets nobody in."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if self._is_ours():
                handle, made = tempfile.mkstemp(dir=self._folder)  # readable by its owner alone
                with os.fdopen(handle, "w", encoding="ascii") as file:
                    file.writelines(f"{digest.hex()}\n" for digest in keys.digests)
                Path(made).replace(self._file)

    def _is_ours(self) -> bool:
        found = os.lstat(self._folder)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
