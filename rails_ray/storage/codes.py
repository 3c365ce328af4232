"""Codes of items, stored with the run trained on them, and with a version during encoding.

    codes.parquet    item_id, codes: int32 [K] as in the parts of a version

Axes: X items, K chunks.
"""

import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import Encoded, read_file


@dataclass(frozen=True)
class ItemCodes:
    """
    codes: codes of the items, in order [X, K].
    """

    item_ids: list[str] | list[int]
    codes: NDArray[np.int32]

    def or_else(self, others: "ItemCodes") -> "ItemCodes":
        """These codes, and the codes from `others` for items that these lack."""
        own = set(self.item_ids)
        rows = [row for row, item_id in enumerate(others.item_ids) if item_id not in own]
        item_ids: Any = [*self.item_ids, *(others.item_ids[row] for row in rows)]
        return ItemCodes(item_ids, np.concatenate([self.codes, others.codes[rows]]))

    @cached_property
    def _rows(self) -> dict[Any, int]:
        return {item_id: row for row, item_id in enumerate(self.item_ids)}

    def of(self, item_ids: Any) -> "ItemCodes":
        """The codes of some items, in order.

        Raises:
            DamagedError: if an item has no codes.
        """
        try:
            rows = [self._rows[item_id] for item_id in item_ids]
        except KeyError as error:
            raise DamagedError(f"codes must hold every item that is encoded, got none of {error}") from None
        return ItemCodes(item_ids, self.codes[rows])

    @property
    def tensor(self) -> Int[Tensor, "X K"]:
        """A copy, because Arrow's arrays are read-only."""
        return torch.tensor(self.codes)


def write(storage: Storage, folder: str, item_codes: ItemCodes) -> None:
    """Write codes to the folder of a run or a version, where they stay unchanged."""
    table = pa.table({"item_id": item_codes.item_ids, "codes": parquet.vectors(item_codes.codes)})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_page_checksum=True)
    storage.write(_path(folder), sink.getvalue())


def read(storage: Storage, folder: str) -> ItemCodes:
    """Raises:
    DamagedError: if the folder has no codes, or they cannot be read.
    """
    try:
        return _of(pq.read_table(io.BytesIO(storage.read(_path(folder))), page_checksum_verification=True))
    except (NotFoundError, pa.ArrowInvalid, OSError, KeyError) as error:
        raise DamagedError(f"{storage}/{_path(folder)} must hold the codes of the items, got: {error}") from None


def exist(storage: Storage, folder: str) -> bool:
    """Whether a folder has codes."""
    return storage.exists(_path(folder))


def of_version(storage: Storage, described: Encoded) -> ItemCodes:
    """The codes of a version's items, every byte checked against the manifest."""
    entries = sorted(described.parts, key=lambda entry: entry.first_row)
    columns = ["item_id", "codes"]
    parts = [io.BytesIO(read_file(storage, described.version, entry)) for entry in entries]
    return _of(pa.concat_tables(pq.read_table(part, columns=columns) for part in parts))


def _of(table: pa.Table) -> ItemCodes:
    return ItemCodes(table["item_id"].to_pylist(), parquet.rows_in(table["codes"]))


def _path(folder: str) -> str:
    return f"{folder}/codes.parquet"
