"""Tables of Python as a data folder: whatever streams Arrow, and data sets of Hugging Face and of Ray.

write_tables("my-texts", items=frame, queries=[{"query_id": 1, ...}], relevance=duckdb.sql("select .."))
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from rails_ray.data.sources import NAMES
from rails_ray.errors import ConflictError
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import to_bytes

BATCH_ROWS = 2**16
TABLES = (*NAMES, "scores", "query_features", "item_features")


def write_tables(folder: str, **tables: Any) -> str:
    """Write a data folder that every command and every config takes, and return its place.

    Args:
        folder: local, or a URL such as s3://bucket/prefix; it must not have any of the tables yet.
        tables: by name. A frame of pandas or Polars, a relation of DuckDB, a table or a reader of Arrow, or anything
            else with `__arrow_c_stream__`; a data set of Hugging Face or of Ray; columns by name; a list of rows.

    Raises:
        ConflictError: if a table is there already.
        ValueError: if a data set has no table of such a name, or an object is no table.
    """
    storage = Storage(folder)
    for name, table in tables.items():
        if name not in TABLES:
            raise ValueError(f"tables must be of {', '.join(TABLES)}, got {name!r}")
        if storage.walk(name) or storage.exists(f"{name}.parquet"):
            raise ConflictError(f"{storage}/{name} must not exist yet, got some files: name another folder")
        for number, batch in enumerate(_batches(name, table)):
            storage.write(f"{name}/part-{number:06d}.parquet", to_bytes(batch))
    return str(storage)


def _batches(name: str, table: Any) -> Iterator[pa.Table]:
    """A table in parts of at most `BATCH_ROWS` rows."""
    for part in _parts(name, table):
        for first in range(0, max(part.num_rows, 1), BATCH_ROWS):
            yield part.slice(first, BATCH_ROWS)


def _parts(name: str, table: Any) -> Iterable[pa.Table]:
    if isinstance(table, Mapping) and hasattr(table, "with_format"):  # of Hugging Face, by split
        raise ValueError(f"table {name} must be one data set, got the splits {', '.join(table)}: take one of them")
    if isinstance(table, Mapping):
        return [pa.table(dict(table))]
    if isinstance(table, list):
        return [pa.Table.from_pylist(table)]
    if hasattr(table, "iter_batches"):  # of Ray Data
        return (batch for batch in table.iter_batches(batch_size=BATCH_ROWS, batch_format="pyarrow"))
    if hasattr(table, "with_format") and hasattr(table, "features"):  # of Hugging Face
        if table.features is None:  # a stream without types, of which the library itself cannot make Arrow
            return (pa.table(batch) for batch in table.with_format(None).iter(BATCH_ROWS))
        return (batch for batch in table.with_format("arrow").iter(BATCH_ROWS))
    if hasattr(table, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(table)
        return (pa.Table.from_batches([batch]) for batch in reader)
    raise ValueError(f"table {name} must be one that Arrow can read, got {type(table).__name__}")
