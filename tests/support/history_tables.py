"""Tables of histories: how a test writes them, and some that are as they should be."""

from typing import Any

import pyarrow as pa

from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage

GOOD = {
    "interactions": {
        "user_id": ["a", "a", "a", "a", "b"],
        "item_id": [10, 11, 12, 10, 13],
        "position": [0, 1, 2, 3, 0],
    },
    "items": {"item_id": [10, 11, 12, 13], "title": ["w", "x", "y", "z"]},
    "users": {"user_id": ["a", "b"]},
}


def write(storage: Storage, **tables: dict[str, Any]) -> None:
    for name, columns in tables.items():
        storage.write(f"{name}.parquet", parquet.to_bytes(pa.table(columns)))
