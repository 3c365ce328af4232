"""Other formats than Parquet, found in a folder and written as Parquet, once for each state of their files.

FOLDER/tables-DIGEST/NAME.parquet, FOLDER/tables-DIGEST/NAME/*.parquet
"""

import hashlib
import json
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache

from rails_ray.data.table_files import data_sets, text_files
from rails_ray.data.table_files.data_sets import Folder
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import to_bytes
from rails_ray.storage.tables import Table

READ = "read.json"  # says that all tables of a data set are written, and what was left out of them
READER = "3"  # changes when files are read in another way


@dataclass(frozen=True)
class Converter:
    """
    cache: storage of the tables that are written; None for a folder of this process.
    notes: what formats left out.
    """

    cache: str | None = None
    notes: list[str] = field(default_factory=list)

    def table(self, place: str, texts: Collection[str]) -> Table | None:
        """The table of a file, or of the files of a folder; None if they are of no other format.

        Raises:
            ValueError: if files of a folder are of several formats, or one is not of its format.
        """
        root, _, name = place.rstrip("/").rpartition("/")
        storage = Storage(root or "/")
        if text_files.ending_of(name) is not None:
            return self._converted(storage, [name], texts) if storage.exists(name) else None
        alone = [file for file in storage.list("") if file.startswith(f"{name}.") and text_files.ending_of(file)]
        alone = [file for file in alone if file.removeprefix(name) in _endings()]
        below = [path for path in storage.walk(name) if text_files.ending_of(path) and "/_" not in path]
        found = [*alone, *below]
        if len({text_files.ending_of(path) for path in found}) > 1 or len(alone) + bool(below) > 1:
            raise ValueError(f"{place} must be one table, got {', '.join(found[:3])}: name one of them as its place")
        return self._converted(storage, found, texts, name) if found else None

    def data_set(self, folder: str, texts: Collection[str] = ()) -> dict[str, Table]:
        """The tables of a folder that another tool has written, by name; none if it is of no known format.

        Args:
            texts: columns of items that are texts, whatever they hold.

        Raises:
            ValueError: if a file is not of its format.
        """
        storage = Storage(folder)
        known = Folder(storage, tuple(storage.walk("")), tuple(texts))
        found = data_sets.format_of(known)
        if found is None:
            return {}
        own, files = found
        target = f"tables-{_digest(storage, files, [own.name, *sorted(texts)])}"
        home = Storage(self.cache or _folder_of_process())
        marker = f"{target}/{READ}"
        if not home.exists(marker):
            tables = own.read(known, files)
            for name, table in tables.items():
                home.write(f"{target}/{name}.parquet", to_bytes(table))
            home.write(marker, json.dumps({"tables": list(tables), "notes": known.notes}).encode())
        done = json.loads(home.read(marker))
        self.notes.extend(note for note in done["notes"] if note not in self.notes)
        root = f"{home}/{target}"
        return {name: Table(root, (f"{name}.parquet",), shown=(f"{name} of {storage}",)) for name in done["tables"]}

    def _converted(self, storage: Storage, paths: list[str], texts: Collection[str], folder: str = "") -> Table:
        """Each file as a file of a table, in the order of their paths."""
        home = Storage(self.cache or _folder_of_process())
        target = f"tables-{_digest(storage, paths, sorted(texts))}"
        written = [f"{target}/{path.removeprefix(folder).strip('/')}.parquet" for path in paths]
        for path, file in zip(paths, written, strict=True):
            if not home.exists(file):
                home.write(file, to_bytes(text_files.read(storage, path, texts)))
        return Table(str(home), tuple(written), target, shown=tuple(f"{storage}/{path}" for path in paths))


def _endings() -> list[str]:
    return [f"{ending}{end}" for ending in text_files.ENDINGS for end in ("", *text_files.COMPRESSIONS)]


def _digest(storage: Storage, paths: Collection[str], more: Collection[str]) -> str:
    """A digest of the states of files, and of how they are read."""
    found = hashlib.sha256(f"{READER}|{storage}|{'|'.join(more)}".encode())
    for path in paths:
        with storage.open(path) as (_, tag):
            found.update(f"|{path}|{tag}".encode())
    return found.hexdigest()[:32]


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rails-ray-")


def _folder_of_process() -> str:
    """A folder that is deleted when this process ends."""
    return _folder().name
