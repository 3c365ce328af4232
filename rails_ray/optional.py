"""Packages that are imported only where they are needed."""

import importlib
from typing import Any

from rails_ray.errors import UnsupportedError


def optional(module: str, *, needed_by: str, package: str, install: str) -> Any:
    """A module of such a package.

    Args:
        needed_by: what needs it, as the subject of a sentence.
        install: what pip installs.

    Raises:
        UnsupportedError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UnsupportedError(f"{needed_by} needs the package {package}, got none: pip install {install}") from None
