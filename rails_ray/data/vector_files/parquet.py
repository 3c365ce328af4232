"""`.parquet`: a column of ids, and a column of vectors, each a list of as many numbers.

It writes `id` (int64 or string) and `vector` (FixedSizeList of float32). It reads `vector` or a named column, and takes
ids from the first of `id`, `item_id`, `query_id` that exists.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rails_ray.data.vector_files.rows import VectorFile
from rails_ray.data.vector_files.writing import Labelled
from rails_ray.data.vectors import VectorShape, as_column, vectors_of
from rails_ray.storage import table_places
from rails_ray.storage.rows import check_distinct
from rails_ray.storage.tables import Table
from rails_ray.storage.values import ID, NUMBERS

ID_COLUMNS = ("id", "item_id", "query_id")
VECTOR = "vector"


def open_parquet(path: Path, name: str | None = None) -> VectorFile:
    """The contract of `Reader`; `name` is a column."""
    return open_table(table_places.find(str(path.absolute())), str(path), name or VECTOR)


def open_table(table: Table, file: str, column: str) -> VectorFile:
    """The vectors of a table of one file or several.

    Args:
        file: its name, for messages about all of it.

    Raises:
        ValueError: if a file is not Parquet, has no such column, or has ids that are not distinct.
    """
    shape = VectorShape.of(table, column, NUMBERS)
    id_column = next((known for known in ID_COLUMNS if known in table), None)
    ids = None if id_column is None else table.read({id_column: ID})
    if ids is not None and id_column is not None:
        check_distinct(ids, id_column)

    def read(rows: int) -> Iterator[NDArray[np.float32]]:
        for batch in table.batches({column: NUMBERS}, batch_rows=rows):
            yield vectors_of(batch, column, shape)

    return VectorFile(
        file=file,
        num_rows=sum(footer.num_rows for footer in table.footers),
        width=shape.sizes[0],
        read=read,
        ids=None if ids is None or id_column is None else ids[id_column],
    )


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
