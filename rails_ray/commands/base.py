"""What commands share: two consoles, storage, and the way to say what comes next."""

import importlib
from dataclasses import dataclass

from rich.console import Console

STORAGE = "rails-ray-data"
EXIT_FAILED, EXIT_BAD_ARGUMENT, EXIT_INTERRUPTED = 1, 2, 130

out = Console()
if not out.is_terminal:  # a job's log, a file: nothing says how wide it is
    out.width = max(out.width, 120)
errors = Console(stderr=True)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The option of every command that reads or writes storage."""

    storage: str = STORAGE
    """Folder or s3://bucket/prefix that holds runs and index versions."""


def load() -> None:
    """Import torch and Ray, which takes seconds, under a spinner."""
    with out.status("loading torch and Ray"):
        importlib.import_module("rails_ray.on_ray")


def fail(what: object) -> None:
    """Say in one sentence on stderr what failed."""
    errors.print(f"rails-ray: {what}", highlight=False, markup=False, soft_wrap=True)


def say_next(command: str, storage: str) -> None:
    """Print the command to run after this one."""
    where = "" if storage == STORAGE else f" --storage {storage}"
    out.print(f"next: {command}{where}", highlight=False, markup=False, emoji=False, soft_wrap=True)
