"""A text data set: three Parquet tables in one folder.

    items.parquet       item_id (integer or string, distinct), text (string), title (string; may be left out)
    queries.parquet     query_id (integer or string, distinct), text (string), split ("train", "valid" or "test")
    relevance.parquet   query_id, item_id: this item answers this query

Further columns are ignored. The position of an item in items.parquet is its item row. A title is read before the text.
Queries that no item answers are left out. Where no query is of split "valid", every tenth one of "train" is.
"""

import pyarrow as pa
import pyarrow.compute as pc

from rails_ray.data.dataset import DataSet
from rails_ray.data.relevance import by_split
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import ID, TEXT, check_distinct, read_table


def read(storage: Storage) -> DataSet:
    """Read and check the three tables in a folder.

    Raises:
        NotFoundError: if a table is not there.
        ValueError: if a table is not as the contract says; the message names file, column and row.
    """
    items = read_items(storage)
    queries = read_table(storage, "queries.parquet", {"query_id": ID, "text": TEXT, "split": TEXT})
    texts = queries["text"].to_pylist()
    return DataSet(
        items["item_id"].to_pylist(),
        item_texts(items).to_pylist(),
        by_split(storage, queries, items, lambda rows: [texts[row] for row in rows]),
        titles=items["title"].to_pylist() if "title" in items.column_names else None,
    )


def read_items(storage: Storage) -> pa.Table:
    """The table of items alone, checked."""
    file = "items.parquet"
    items = read_table(storage, file, {"item_id": ID, "text": TEXT}, optional={"title": TEXT})
    check_distinct(items["item_id"], "item_id", f"{storage}/{file}")
    return items


def item_texts(items: pa.Table) -> pa.ChunkedArray:
    """What the item encoder reads of each item."""
    if "title" not in items.column_names:
        return items["text"]
    kind = pa.large_string()  # all three must be of one type
    return pc.binary_join_element_wise(items["title"].cast(kind), items["text"].cast(kind), pa.scalar("\n", kind))
