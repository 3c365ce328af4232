"""Codes of items, stored with the run trained on them, and with a version during encoding.

codes.parquet    item_id, codes: int32 [K] as in the parts of a version
"""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.modules.quantizers.item_codes import ItemCodes
from rails_ray.storage import parquet
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.hidden import live_rows
from rails_ray.storage.manifest import read_file


def write(storage: Storage, folder: str, item_codes: ItemCodes) -> None:
    """Write codes to the folder of a run or a version, where they stay unchanged."""
    table = pa.table({"item_id": list(item_codes.item_ids), "codes": parquet.vectors(item_codes.codes)})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_page_checksum=True)
    storage.write(_path(folder), sink.getvalue())


def read(storage: Storage, folder: str) -> ItemCodes:
    """Raises:
    DamagedError: if the folder has no codes, or they cannot be read.
    """
    try:
        return _of(parquet.read_plain(io.BytesIO(storage.read(_path(folder))), checks_pages=True))
    except (NotFoundError, pa.ArrowException, OSError, KeyError) as error:
        raise DamagedError(f"{storage}/{_path(folder)} must hold the codes of the items, got: {error}") from None


def exist(storage: Storage, folder: str) -> bool:
    """Return whether a folder has codes."""
    return storage.exists(_path(folder))


def of_version(storage: Storage, described: Encoded) -> ItemCodes:
    """The codes of a version's items that are not hidden, every byte checked against the manifest."""
    columns, tables = ["item_id", "codes"], list[pa.Table]()
    for entry in sorted(described.parts, key=lambda entry: entry.first_row):
        table = parquet.read_plain(io.BytesIO(read_file(storage, described.home, entry)), columns)
        rows = live_rows(storage, described, entry)
        tables.append(table if rows is None else table.take(pa.array(rows)))
    return _of(pa.concat_tables(tables))


def _of(table: pa.Table) -> ItemCodes:
    return ItemCodes(table["item_id"].to_pylist(), parquet.rows_in(table["codes"]))


def _path(folder: str) -> str:
    return f"{folder}/codes.parquet"
