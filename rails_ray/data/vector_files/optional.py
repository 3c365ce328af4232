"""Packages that only some formats need."""

import importlib
from pathlib import Path
from typing import Any


def optional(package: str, distribution: str, path: Path) -> Any:
    """The package's module.

    Args:
        distribution: the name under which pip installs it.
        path: the file for which it is needed.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ValueError(
            f"the package {package} must be installed for {path.name}, got none: run `pip install {distribution}`"
        ) from None
