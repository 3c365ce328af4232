"""Which tables a data set has, by their footers."""

import io
from dataclasses import dataclass

from rails_ray.data.sources import NAMES, Sources
from rails_ray.errors import NotFoundError
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet_files import Footer
from rails_ray.storage.tables import Table


@dataclass(frozen=True)
class Survey:
    """A table as its files' footers describe it.

    footers: of the files that are Parquet.
    unreadable: a sentence for each file that is not Parquet, or for a table that cannot be put together.
    """

    table: Table
    size_bytes: int
    footers: tuple[Footer, ...]
    unreadable: tuple[str, ...]

    @property
    def num_rows(self) -> int:
        return sum(footer.num_rows for footer in self.footers)

    @property
    def columns(self) -> list[str]:
        """The columns that any of its files has, in order."""
        return list(dict.fromkeys(name for footer in self.footers for name in footer.columns))

    def has(self, column: str) -> bool:
        """Return whether a file may have a column, under its name or another that stands for it."""
        if not self.footers:
            return bool(self.unreadable)
        return any(self.table.column_in(footer, column) is not None for footer in self.footers)

    @property
    def num_files(self) -> int:
        return len(self.table.paths)


def survey(sources: Sources) -> dict[str, Survey]:
    """The tables that are there, by name."""
    found = {}
    for name in NAMES:
        try:
            found[name] = _survey(sources.table(name))
        except NotFoundError:
            continue
        except ValueError as error:
            found[name] = Survey(Table("", ()), 0, (), (str(error),))
    return found


def _survey(table: Table) -> Survey:
    size_bytes = 0
    for path in table.paths:
        with Storage(table.root).open(path) as (file, _):
            size_bytes += file.seek(0, io.SEEK_END)
    return Survey(table, size_bytes, *table.readable)


def other_files(sources: Sources) -> list[str]:
    """Parquet files of the folder that are no table of a data set: named by mistake, perhaps."""
    if sources.folder is None:
        return []
    tables = {f"{name}.parquet" for name in NAMES}
    return [name for name in Storage(sources.folder).list("") if name.endswith(".parquet") and name not in tables]
