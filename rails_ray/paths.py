"""Paths of this machine, as a person writes them."""

from pathlib import Path


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of `~` or `~user`.

    Raises:
        ValueError: if no such folder is known, as of a user without an entry in passwd.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(
            f"the home folder of {str(path)!r} must be known, got none: set HOME or name a folder"
        ) from None
