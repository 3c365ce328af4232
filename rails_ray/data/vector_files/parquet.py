"""`.parquet`: a column of ids, and a column of vectors, each a list of as many numbers.

It writes `id` (int64 or string) and `vector` (FixedSizeList of float32). It reads `vector` or a named column, and takes
ids from the first of `id`, `item_id`, `query_id` that exists.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rails_ray.data.vector_files.rows import VectorFile, check_shape, to_ids
from rails_ray.data.vector_files.writing import Labelled
from rails_ray.data.vectors import VectorShape, as_column, vectors_of
from rails_ray.storage import tables
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.rows import Rows, check_distinct
from rails_ray.storage.tables import KINDS, NUMBERS, RowBatch, Table

ID_COLUMNS = ("id", "item_id", "query_id")
VECTOR = "vector"
PAGE_BYTES = 2**20  # of a column that are read at a time: a row group may be large


def open_parquet(path: Path, name: str | None = None) -> VectorFile:
    """The contract of `Reader`; `name` is a column."""
    return open_table(tables.find(str(path.absolute())), str(path), name or VECTOR)


def open_table(table: Table, file: str, column: str) -> VectorFile:
    """The vectors of a table of one file or several.

    Args:
        file: its name, for messages about all of it.

    Raises:
        ValueError: if a file is not Parquet, has no such column, or has ids that are not distinct.
    """
    storage = Storage(table.root)
    with _opened(storage, table.paths[0], column) as (first, name):
        shape = VectorShape((_width(first, column),), name)
    id_column = next((known for known in ID_COLUMNS if known in table.column_names()), None)
    ids = None if id_column is None else _ids(storage, table, column, id_column)

    def read(rows: int) -> Iterator[NDArray[np.float32]]:
        for path in table.paths:
            with _opened(storage, path, column) as (part, name):
                first_row = 0
                for batch in part.iter_batches(rows, columns=[column]):
                    yield vectors_of(RowBatch(pa.table(batch), name, first_row), column, shape)
                    first_row += len(batch)

    num_rows = sum(table.rows(number).num_rows for number in range(len(table.paths)))
    return VectorFile(file=file, num_rows=num_rows, width=shape.sizes[0], read=read, ids=ids)


@contextmanager
def _opened(storage: Storage, path: str, column: str) -> Iterator[tuple[pq.ParquetFile, str]]:
    """A file that has the column, and its name. `PAGE_BYTES` of a column are read at a time.

    Raises:
        ValueError: if it is not Parquet, is empty, or the column is not there or of another kind.
    """
    name = f"{storage}/{path}"
    try:
        with storage.open(path) as (raw, _):
            file = pq.ParquetFile(pa.PythonFile(raw, mode="r"), buffer_size=PAGE_BYTES, pre_buffer=False)
            schema = file.schema_arrow
            if column not in schema.names:
                raise ValueError(f"{name} must have a column {column!r}, got {', '.join(schema.names) or 'no column'}")
            kind = schema.field(column).type
            if not any(KINDS[numbers](kind) for numbers in NUMBERS):
                raise ValueError(f"column {column!r} of {name} must be of type {' or '.join(NUMBERS)}, got {kind}")
            check_shape(file.metadata.num_rows, 1, name)
            yield file, name
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{name} must be a Parquet file, got: {error}") from None


def _ids(storage: Storage, table: Table, column: str, id_column: str) -> pa.ChunkedArray:
    """The ids of all files.

    Raises:
        ValueError: if a file has none, or ids of another type, or one is missing or there twice.
    """
    chunks, files, ends = list[pa.Array](), list[str](), list[int]()
    for path in table.paths:
        with _opened(storage, path, column) as (part, name):
            if id_column not in part.schema_arrow.names:
                raise ValueError(f"{name} must have a column {id_column!r} as {files[0]} has, got none")
            ids = to_ids(part.read(columns=[id_column])[id_column], name)
            if chunks and ids.type != chunks[0].type:
                raise ValueError(f"ids of {name} must be of type {chunks[0].type} as in {files[0]}, got {ids.type}")
            chunks += ids.chunks
            files.append(name)
            ends.append(len(ids) + (ends[-1] if ends else 0))
    column_of_all = pa.chunked_array(chunks)
    check_distinct(Rows(pa.table({id_column: column_of_all}), tuple(files), tuple(ends)), id_column)
    return column_of_all


def _width(file: pq.ParquetFile, column: str) -> int:
    kind = file.schema_arrow.field(column).type
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    first = next(file.iter_batches(1, columns=[column])).column(0)[0]
    return len(first) if first.is_valid else 1  # reading says that there is none


def write_parquet(path: Path, width: int, blocks: Iterator[Labelled]) -> None:
    """The contract of `Writer`. Without ids, the row numbers are written."""
    writer: pq.ParquetWriter | None = None
    first = 0
    try:
        for ids, block in blocks:
            numbered = pa.array(np.arange(first, first + len(block))) if ids is None else ids
            table = pa.table({ID_COLUMNS[0]: numbered, VECTOR: as_column(block)})
            if writer is None:
                # Almost no two vectors are equal, and looking for repeats takes longer than the rest.
                writer = pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=False)
            writer.write_table(table.cast(writer.schema))
            first += len(block)
    finally:
        if writer is not None:
            writer.close()
