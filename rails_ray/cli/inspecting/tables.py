"""Which tables a data set has, by their footers."""

import io
from dataclasses import dataclass

from rails_ray.data.sources import NAMES, Sources
from rails_ray.errors import NotFoundError
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.tables import Table


@dataclass(frozen=True)
class Survey:
    """A table as its files' footers describe it.

    columns: the columns that any of its files has, in order.
    unreadable: a sentence for each file that is not Parquet.
    """

    table: Table
    num_rows: int
    size_bytes: int
    columns: tuple[str, ...]
    unreadable: tuple[str, ...]

    @property
    def num_files(self) -> int:
        return len(self.table.paths)


def survey(sources: Sources) -> dict[str, Survey]:
    """The tables that are there, by name."""
    found = {}
    for name in NAMES:
        try:
            table = sources.table(name)
        except NotFoundError:
            continue
        found[name] = _survey(table)
    return found


def _survey(table: Table) -> Survey:
    num_rows, size_bytes = 0, 0
    columns, unreadable = dict[str, None](), list[str]()
    for number, path in enumerate(table.paths):
        with Storage(table.root).open(path) as (file, _):
            size_bytes += file.seek(0, io.SEEK_END)
        try:
            num_rows += table.rows(number).num_rows
            columns |= dict.fromkeys(table.column_names(number))
        except ValueError as error:
            unreadable.append(str(error))
    return Survey(table, num_rows, size_bytes, tuple(columns), tuple(unreadable))


def other_files(sources: Sources) -> list[str]:
    """Parquet files of the folder that are no table of a data set: named by mistake, perhaps."""
    if sources.folder is None:
        return []
    tables = {f"{name}.parquet" for name in NAMES}
    return [name for name in Storage(sources.folder).list("") if name.endswith(".parquet") and name not in tables]
