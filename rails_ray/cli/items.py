"""Items that come and go in the current version, without encoding the others again."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import tyro

from rails_ray.cli.base import AllowsCode, Stored, errors, out, say_next
from rails_ray.cli.stages import data_config

if TYPE_CHECKING:
    from rails_ray.families.changing import Change


class Changing(Protocol):
    """A command that changes the current version."""

    @property
    def storage(self) -> str: ...

    @property
    def allow_code(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True)
class AddItems(AllowsCode, Stored):
    """Add items to the current version: the model encodes them alone, and the result becomes current.

    Args:
        folder: Data with the items to add.
        items: File, folder or pattern of the items alone, in place of --folder.
        zero_vectors: What becomes of items with a vector of zeros. refuse: nothing is added; keep: they are found last.
        compact: Write the version anew where deltas and deleted items have become many: auto, or never.
    """

    folder: str | None = None
    items: str | None = None
    zero_vectors: Literal["refuse", "keep"] = "refuse"
    compact: Literal["auto", "never"] = "auto"

    replaces = False

    def run(self) -> dict[str, Any]:
        with errors.status("loading torch"):
            from rails_ray.cli import rendering
            from rails_ray.counting import shown
            from rails_ray.families import changing
            from rails_ray.families.read_items import read_items
            from rails_ray.families.version import Version
            from rails_ray.storage.filesystem import Storage

        data = data_config(self.folder, self.items, None, self.zero_vectors)
        if data is None:
            raise ValueError("items to add must be named by --folder or --items, got neither")
        store = Storage(self.storage)
        with rendering.bar(out, "add items") as on_progress, shown(on_progress):
            items, notes = read_items(Version.published(store), data)
            for note in notes:
                logging.getLogger("rails_ray.families.encoding").warning(note)
            change = changing.add(store, items, replaces=self.replaces, allow_code=self.allow_code)
        say_change(change)
        return facts_of(self.after(change), change)

    def after(self, change: "Change") -> str:
        """Compact the version if it is due. Returns the name of the current version."""
        return compacted_if_due(self, change, self.compact == "auto")


@dataclass(frozen=True, kw_only=True)
class UpsertItems(AddItems):
    """Add items to the current version, in place of those that it has under the same ids.

    Args:
        folder: Data with the items.
        items: File, folder or pattern of the items alone, in place of --folder.
        zero_vectors: What becomes of items with a vector of zeros. refuse: nothing is added; keep: they are found last.
        compact: Write the version anew where deltas and deleted items have become many: auto, or never.
    """

    replaces = True


@dataclass(frozen=True, kw_only=True)
class DeleteItems(AllowsCode, Stored):
    """Delete items from the current version. Ids that no item has are counted.

    Args:
        ids: Ids of items. An integer id may be written in digits.
        compact: Write the version anew where deltas and deleted items have become many: auto, or never.
    """

    ids: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="ID [ID ..]")]
    compact: Literal["auto", "never"] = "auto"

    def run(self) -> dict[str, Any]:
        if not self.ids:
            raise ValueError("items to delete must be named by their ids, got none")
        with errors.status("loading torch"):
            from rails_ray.families import changing
            from rails_ray.storage.filesystem import Storage

        change = changing.delete(Storage(self.storage), self.ids, allow_code=self.allow_code)
        say_change(change)
        return facts_of(compacted_if_due(self, change, self.compact == "auto"), change)


def say_change(change: "Change") -> None:
    """Print what became of a version."""
    counts = {
        "added": change.num_added,
        "replaced": change.num_replaced,
        "deleted": change.num_deleted,
        "unknown": change.num_unknown,
    }
    done = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number) or "nothing changed"
    manifest = change.manifest
    out.print(f"version {manifest.version} is current: {manifest.num_live:,} items ({done})", highlight=False)


def facts_of(version: str, change: "Change") -> dict[str, Any]:
    """The fields of a job's last line."""
    return {
        "version": version,
        "num_items": change.manifest.num_live,
        "num_added": change.num_added,
        "num_replaced": change.num_replaced,
        "num_deleted": change.num_deleted,
        "num_unknown": change.num_unknown,
    }


def compacted_if_due(command: Changing, change: "Change", is_wanted: bool) -> str:
    """Compact the version if it is due and wanted. Returns the name of the current version."""
    from rails_ray.cli import rendering
    from rails_ray.counting import shown
    from rails_ray.families.compacting import compact
    from rails_ray.storage.deltas import is_compaction_due
    from rails_ray.storage.filesystem import Storage

    if not is_compaction_due(change.manifest):
        return change.manifest.version
    if not is_wanted:
        say_next("rails-ray index compact", command.storage)
        return change.manifest.version
    with rendering.bar(out, "compact") as on_progress, shown(on_progress):
        manifest = compact(Storage(command.storage), allow_code=command.allow_code)
    out.print(f"version {manifest.version} is current: compacted, {manifest.num_live:,} items", highlight=False)
    return manifest.version


@dataclass(frozen=True)
class ItemsCommand:
    """Add, replace and delete items of the current version, without encoding the others again."""

    action: tyro.conf.OmitSubcommandPrefixes[
        Annotated[AddItems, tyro.conf.subcommand("add")]
        | Annotated[UpsertItems, tyro.conf.subcommand("upsert")]
        | Annotated[DeleteItems, tyro.conf.subcommand("delete")]
    ]

    def run(self) -> dict[str, Any]:
        return self.action.run()
