"""Parts that commands share: two consoles, the storage option, and the line that says what comes next."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console

from rails_ray.allowed_code import OURS
from rails_ray.on_ray.environment import ray_address
from rails_ray.optional import optional

STORAGE = "rails-ray-data"
EXIT_FAILED, EXIT_BAD_ARGUMENT, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 130, 143

out = Console()
if not out.is_terminal:  # a job's log, a file: nothing says how wide it is
    out.width = max(out.width, 120)
errors = Console(stderr=True)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The option of every command that reads or writes storage."""

    storage: str = STORAGE
    """Folder, or s3://, az:// or gs://bucket/prefix, that holds runs and index versions."""


EITHER = tyro.conf.create_mutex_group(required=False, title="seen items")


@dataclass(frozen=True, kw_only=True)
class ExcludesSeen:
    """The options of commands that read queries, which may be histories.

    Args:
        exclude_seen: Keep the items of a query's history out of its answer. With neither option: as the run or
            version says; where there is none, they are kept out.
        no_exclude_seen: Let an answer hold items of the query's history, as for sessions that come back to an item.
    """

    exclude_seen: Annotated[bool, tyro.conf.FlagCreatePairsOff, EITHER] = False
    no_exclude_seen: Annotated[bool, tyro.conf.FlagCreatePairsOff, EITHER] = False

    @property
    def excludes_seen(self) -> bool | None:
        """The choice; None if there is none."""
        return self.exclude_seen if self.exclude_seen or self.no_exclude_seen else None


def say_seen(seen_items: Mapping[str, Any] | None, split: str) -> None:
    """Print what both figures of a report are, if it has both.

    Args:
        seen_items: of the report, as JSON.
    """
    from rails_ray.training.evaluation.seen import remark  # imports scipy

    if seen_items is not None and seen_items["allowed"] is not None:
        out.print(remark(seen_items, split), highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class AllowsCode:
    """The option of every command that opens what a stored config describes."""

    allow_code: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODULE")]] = ()
    """Module of yours whose code a stored config may name as its ranker or encoder; give it again for another.
    RAILS_RAY_ALLOW_CODE names modules too."""


def load(command: str, *, on_cluster: bool = True) -> None:
    """Import Ray and torch, which takes seconds, under a spinner.

    Args:
        on_cluster: whether the command connects to a cluster.

    Raises:
        UnsupportedError: if Ray is not installed.
        ValueError: if RAY_ADDRESS is a URL.
    """
    if on_cluster:
        ray_address()
    with out.status("loading torch and Ray"):
        optional("ray", needed_by=f"rails-ray {command}", package="ray", install="'rails-ray[ray]'")


def fail(what: object) -> None:
    """Say in one sentence on stderr what failed."""
    errors.print(f"rails-ray: {what}", highlight=False, markup=False, soft_wrap=True)


def say_next(command: str, storage: str, paths: Sequence[str] = ()) -> None:
    """Print the command to run after this one.

    Args:
        paths: import paths that the config names which the next command opens.
    """
    where = "" if storage == STORAGE else f" --storage {shlex.quote(storage)}"
    modules = dict.fromkeys(path.partition(":")[0] for path in paths)
    code = "".join(f" --allow-code {module}" for module in modules if module.partition(".")[0] != OURS)
    out.print(f"next: {command}{code}{where}", highlight=False, markup=False, emoji=False, soft_wrap=True)
