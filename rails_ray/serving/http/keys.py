"""API keys: the file, who gets in now, and what outlives a router.

| file                     | who gets in                                                                     |
|--------------------------|---------------------------------------------------------------------------------|
| with keys                | holders of its keys                                                             |
| missing, or without keys | nobody                                                                          |
| malformed, or unreadable | holders of the last good keys, also through a router that has just started       |

The last good keys are kept as SHA-256 in a folder on this machine that only its owner can read or write.
"""

import hashlib
import hmac
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

SHORTEST_KEY = 16  # characters; of random hexadecimal digits, 64 bits
SCOPES = ("search", "admin")  # admin: the description of the API, metrics, changes of items
DIGEST = re.compile("sha256:([0-9a-f]{64})")
RATE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class NoKeysError(ValueError):
    """A file of keys is missing or has no key: the owner's way to lock everyone out."""


@dataclass(frozen=True)
class Key:
    """Entry of a key, which does not hold the key itself.

    digest: its SHA-256.
    scopes: what it opens.
    rate: requests a second that it may make of a router; None for any number.
    """

    digest: bytes
    scopes: frozenset[str] = frozenset(SCOPES)
    rate: float | None = None

    @staticmethod
    def of(key: str) -> "Key":
        return Key(hashlib.sha256(key.encode()).digest())

    def line(self) -> str:
        """The line for a file of keys."""
        words = [f"sha256:{self.digest.hex()}"]
        if self.scopes != frozenset(SCOPES):
            words.append(f"scope={','.join(sorted(self.scopes))}")
        if self.rate is not None:
            words.append(f"rate={self.rate:g}")
        return " ".join(words)

    @staticmethod
    def read(line: str, where: str) -> "Key":
        """The key of a line: itself or its SHA-256, then its scopes and its rate if it has not all.

        Args:
            where: of the line, for messages.

        Raises:
            ValueError: if the line is none.
        """
        word, *options = line.split()
        digest = DIGEST.fullmatch(word)
        if word.startswith("sha256:") and digest is None:
            raise ValueError(f"{where} must have 64 hexadecimal digits after sha256:, got {len(word) - 7} characters")
        if digest is not None and bytes.fromhex(digest[1]) == hashlib.sha256(b"").digest():
            raise ValueError(f"{where} must be the hash of a key, got that of nothing: run `rails-ray new-key`")
        if digest is None and len(word) < SHORTEST_KEY:
            raise ValueError(f"{where} must be a key of at least {SHORTEST_KEY} characters, got {len(word)}")
        key = Key.of(word) if digest is None else Key(bytes.fromhex(digest[1]))
        for option in options:
            name, _, value = option.partition("=")
            if name == "scope" and value and set(value.split(",")) <= set(SCOPES):
                key = replace(key, scopes=frozenset(value.split(",")))
            elif name == "rate" and RATE.fullmatch(value) and float(value) > 0:
                key = replace(key, rate=float(value))
            else:
                raise ValueError(
                    f"{where} may have scope={','.join(SCOPES)} and rate=NUMBER after its key, got {option[:40]!r}"
                )
        return key


@dataclass(frozen=True)
class Keys:
    """API keys as SHA-256, compared in constant time."""

    known: tuple[Key, ...]

    @staticmethod
    def of(keys: Iterable[str]) -> "Keys":
        return Keys(tuple(map(Key.of, keys)))

    @staticmethod
    def read(path: str) -> "Keys":
        """The keys of a file, one a line; empty lines and lines that begin with # are skipped.

        Raises:
            NoKeysError: if there is no such file, or no key in it.
            ValueError: if it cannot be read, or holds a key that is too short to be secret, or a line that is no key.
        """
        try:
            lines = Path(path).read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeError) as error:
            kind = NoKeysError if isinstance(error, FileNotFoundError) else ValueError
            raise kind(f"keys_file must be a text file of ASCII keys, got {path}: {error}") from None
        numbered = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
        keys = [
            Key.read(line, f"line {number} of {path}") for number, line in numbered if line and not line.startswith("#")
        ]
        if not keys:
            raise NoKeysError(f"keys_file must hold at least 1 key, got none in {path}")
        return Keys(tuple(keys))

    def find(self, key: bytes) -> Key | None:
        """The key, if it is one of these. Every key is compared, so the duration reveals nothing."""
        digest = hashlib.sha256(key).digest()
        found = [known for known in self.known if hmac.compare_digest(known.digest, digest)]
        return found[0] if found else None


NOBODY = Keys(())


class Valid(NamedTuple):
    """
    keys: the keys that are valid now.
    problem: what is wrong with the file, and who gets in now, in one sentence; None if all is well.
    """

    keys: Keys
    problem: str | None = None


def valid(path: str, former: Keys) -> Valid:
    """The keys that are valid now, by the table above.

    Args:
        former: the keys that were valid before.
    """
    try:
        return Valid(Keys.read(path))
    except NoKeysError as error:
        return Valid(NOBODY, f"{error}: nobody gets in until it holds one")
    except ValueError as error:
        follows = "the keys that were valid before stay valid" if former.known else "nobody gets in"
        return Valid(former, f"{error}: {follows} until it is fixed")


class LastKeys:
    """The last valid keys that any process on this machine read.

    Args:
        path: path of the file of keys; each path has its own memory.
        folder: folder of the memory; only its owner may open it.
    """

    def __init__(self, path: str, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.gettempdir()) / f"rails-ray-{os.geteuid()}"
        self._file = self.folder / f"keys-{hashlib.sha256(str(Path(path).absolute()).encode()).hexdigest()[:16]}"

    def read(self) -> Keys | None:
        """The keys; None if they are unknown, or if another user could have written the file."""
        with suppress(OSError, ValueError):
            if self._is_ours():
                lines = self._file.read_text(encoding="ascii").splitlines()
                if all(DIGEST.match(line) for line in lines):
                    return Keys(tuple(Key.read(line, "a line") for line in lines))
        return None

    def keep(self, keys: Keys) -> bool:
        """Store the keys; returns whether that worked. An unchanged file is touched, so that no cleaner deletes it."""
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
                    file.writelines(f"{key.line()}\n" for key in keys.known)
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
    """A file of keys that several processes read repeatedly and must agree on."""

    def __init__(self, path: str, last: LastKeys | None = None) -> None:
        self._path = path
        self._last = last or LastKeys(path)
        self._keys = NOBODY  # used if nothing can be stored

    def look(self) -> Valid:
        """Read the file; returns the keys that are valid now."""
        remembered = self._last.read()
        keys, problem = valid(self._path, self._keys if remembered is None else remembered)
        self._keys = keys
        if not self._last.keep(keys) and problem is None:
            problem = (
                f"{self._last.folder} must be a folder that only this user can open, got another or none: a router "
                "that starts while the file of keys is malformed will let nobody in"
            )
        return Valid(keys, problem)
