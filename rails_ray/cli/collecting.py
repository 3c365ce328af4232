"""Contents of a storage: tags of versions, and the collection of what nothing needs."""

import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.filesize import decimal
from rich.table import Table

from rails_ray.cli.base import Stored, errors, out

if TYPE_CHECKING:
    from rails_ray.storage.garbage import Garbage


@dataclass(frozen=True, kw_only=True)
class CollectGarbage(Stored):
    """Show which versions and files nothing needs, and with --delete delete them.

    Kept are the current version, the one before, versions with a tag, those that servers read, the newest of the others
    and those that are not published. Runs and data sets stay.

    Args:
        keep: How many of the newest published versions stay beside the current one.
        version: A version to delete; give it again for another. No others are deleted then.
        unfinished: Delete encodings that were cut off too.
        delete: Delete what is shown.
        yes: Delete it even if it is more than half of all bytes.
        json: Print JSON alone.
    """

    keep: int = 5
    version: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="VERSION")]] = ()
    unfinished: bool = False
    delete: bool = False
    yes: bool = False
    json: bool = False

    def run(self) -> dict[str, Any]:
        from rails_ray.cli import rendering
        from rails_ray.storage.collecting import collect
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.garbage import RetentionPolicy, find

        store = Storage(self.storage)
        policy = RetentionPolicy(keep=self.keep, versions=self.version, unfinished=self.unfinished)
        if not self.delete:
            found = find(store, policy, time.time())
            facts = {"num_deleted": 0, "deleted_bytes": 0, "is_complete": not found.files}
            if not self.json:
                out.print(table(found, f"versions in {self.storage}"))
                self.say_next(found)
        else:
            with rendering.bar(errors if self.json else out, "collect") as on_progress:
                done = collect(store, policy, may_be_most=self.yes, on_file=partial(on_progress, note="files"))
            found = done.garbage
            facts = {
                "num_deleted": done.num_files,
                "deleted_bytes": done.size_bytes,
                "is_complete": done.is_complete,
            }
            if not self.json:
                out.print(table(found, f"versions in {self.storage}"))
                out.print(f"deleted: {done.num_files:,} files, {decimal(done.size_bytes)}", highlight=False)
                if not done.is_complete:
                    num_left = len(found.files) - done.num_files
                    out.print(
                        f"stopped early, as a change was waiting: run it again to delete {num_left:,} more files",
                        highlight=False,
                    )
        facts |= {
            "num_files": len(found.files),
            "size_bytes": found.size_bytes,
            "total_bytes": found.total_bytes,
        }
        if self.json:
            print(json.dumps({"format": 1, **facts, "versions": list(map(asdict, found.versions))}, indent=1))
        return facts

    def say_next(self, found: "Garbage") -> None:
        """Print what is to be deleted, and how."""
        if not found.files:
            out.print("nothing to delete", highlight=False)
            return
        out.print(
            f"to delete: {len(found.files):,} files, {decimal(found.size_bytes)} of {decimal(found.total_bytes)}; "
            f"the same command with --delete{' --yes' if found.is_most else ''} deletes them",
            highlight=False,
            soft_wrap=True,
        )


def table(found: "Garbage", title: str) -> Table:
    """A table of versions: why they are kept, or how many bytes of theirs go."""
    made = Table(title=title, title_justify="left", show_footer=True)
    made.add_column("version", "all", no_wrap=True)
    made.add_column("state")
    made.add_column("kept as")
    made.add_column("to delete", decimal(found.size_bytes), justify="right")
    for own in found.versions:
        style = "dim" if own.reasons else ""
        made.add_row(own.version, own.state, ", ".join(own.reasons), decimal(own.size_bytes), style=style)
    return made


@dataclass(frozen=True, kw_only=True)
class TagVersion(Stored):
    """Give a version a tag, or move a tag to it. A version with a tag is never collected, and its tag may stand for its
    name."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Name of the tag."""
    version: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[VERSION]")] = None
    """A published version or another tag of it. If left out: the current one."""

    def run(self) -> dict[str, Any]:
        from rails_ray.storage import tags
        from rails_ray.storage.filesystem import Storage
        from rails_ray.storage.versions import read_manifest

        store = Storage(self.storage)
        version = read_manifest(store, self.version).version
        tags.tag(store, self.name, version)
        out.print(f"tag {self.name}: version {version}", highlight=False)
        return {"tag": self.name, "version": version}


@dataclass(frozen=True, kw_only=True)
class UntagVersion(Stored):
    """Delete a tag. Its version stays until it is collected."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Name of the tag."""

    def run(self) -> None:
        from rails_ray.storage import tags
        from rails_ray.storage.filesystem import Storage

        tags.untag(Storage(self.storage), self.name)
        out.print(f"tag {self.name} is gone", highlight=False)
