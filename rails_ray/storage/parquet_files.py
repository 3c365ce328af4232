"""A Parquet file of a table: its rows and columns, and its state, opened to be read in batches."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from rails_ray.errors import StorageError
from rails_ray.storage.filesystem import Storage

BUFFER_BYTES = 2**23  # read of a column at once, in place of all that a row group has
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of one file.

    first_row: place of the first row in the file.
    num_null: nulls of columns whose nulls are read as empty texts, or as empty lists.
    """

    table: pa.Table
    file: str
    first_row: int = 0
    num_null: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, column: str) -> pa.ChunkedArray:
        return self.table[column]

    def at(self, row: int) -> int:
        """The place in the file of a row of the batch."""
        return self.first_row + row


@dataclass(frozen=True)
class FileRows:
    """Rows of a file of a table.

    tag: the state in which it was found.
    row_groups: rows of each row group.
    """

    path: str
    tag: str
    row_groups: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.row_groups)


@dataclass(frozen=True)
class Footer:
    """
    schema: the columns of a file.
    partitions: columns that its folders give, with their value; None for a null.
    """

    name: str
    schema: pa.Schema
    num_rows: int
    partitions: Mapping[str, str | None]

    @property
    def columns(self) -> list[str]:
        return [*self.schema.names, *(name for name in self.partitions if name not in self.schema.names)]


def partitions(path: str) -> dict[str, str | None]:
    """The columns that the folders of a file give."""
    pairs = (name.partition("=") for name in path.split("/")[:-1] if "=" in name)
    return {unquote(name): None if value == NULL_PARTITION else unquote(value) for name, _, value in pairs}


@contextmanager
def opened(storage: Storage, path: str, tag: str | None = None) -> Iterator[tuple[pq.ParquetFile | None, str]]:
    """A Parquet file and its state; None for the file if it has no bytes.

    Raises:
        NotFoundError: if there is no such file.
        StorageError: if its state is not `tag`.
        ValueError: if it is not Parquet.
    """
    with storage.open(path) as (raw, found):
        if tag is not None:
            check_tag(storage, path, tag, found)
        if not raw.seek(0, io.SEEK_END):
            yield None, found
            return
        raw.seek(0)
        try:
            # Pre-buffered, it would keep all that it has read.
            file = pq.ParquetFile(pa.PythonFile(raw, mode="r"), buffer_size=BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(
                f"{storage}/{path} must be a Parquet file, got: {error}: write it again, or take it out of the data"
            ) from None
        yield file, found


def check_tag(storage: Storage, path: str, expected: str, found: str) -> None:
    if found != expected:
        raise StorageError(
            f"{storage}/{path} must stay as it is while it is read, got a change: run it again when it is complete"
        )


def sizes(file: pq.ParquetFile) -> list[int]:
    """Rows of each row group."""
    return [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
