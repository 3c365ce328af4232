"""Where the tables of a data set are: in one folder, or each in a place of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rails_ray.errors import NotFoundError
from rails_ray.storage import tables
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.tables import Table

NAMES = ("items", "queries", "relevance", "interactions", "users")


@dataclass(frozen=True)
class Sources:
    """
    folder: local or s3://bucket/prefix; a table NAME is its file NAME.parquet, or its folder NAME.parquet or NAME. None
        if every table has a place of its own.
    places: files, folders or patterns of tables that are elsewhere, by the names of the tables.
    """

    folder: str | None
    places: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(Storage(self.folder)) if self.folder is not None else next(iter(self.places.values()), "nothing")

    def table(self, name: str) -> Table:
        """The table of a name.

        Raises:
            NotFoundError: if there is none.
        """
        if name in self.places:
            return tables.find(self.places[name])
        if self.folder is None:
            raise NotFoundError(f"the table of {name} must be somewhere, got no folder and no place: name one")
        for place in (f"{name}.parquet", name):
            try:
                return tables.find(f"{Storage(self.folder)}/{place}")
            except NotFoundError:
                continue
        raise NotFoundError(
            f"{Storage(self.folder)}/{name}.parquet must exist, got no such file, and no folder {name} of Parquet files"
        )

    def has(self, name: str) -> bool:
        """Return whether there is such a table."""
        try:
            self.table(name)
        except NotFoundError:
            return False
        return True
